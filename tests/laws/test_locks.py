"""The lock files of requirements/ name everything that is installed, with versions and hashes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
RUN = PROJECT["project"]["dependencies"]
USED = [line for name in ("watch", "track", "hf", "data") for line in EXTRAS[name]]
# What each lock was made for; torch stands in the locks of the two builds only.
ROOTS = {
    "cpu": RUN,
    "cuda": [*RUN, *EXTRAS["gpu"]],
    "dev": [*RUN, *USED, *EXTRAS["docs"], *PROJECT["dependency-groups"]["dev"]],
    "extras": [*RUN, *USED, *EXTRAS["gpu"], *EXTRAS["ray"]],
}
BUILDS = ("cpu", "cuda")
# A line `name==version ; marker \`, then its hashes, one a line.
ENTRY = re.compile(r"[a-z0-9-]+==[^ ;]+ ; [^\\\n]+(?: \\\n    --hash=sha256:[0-9a-f]{64})+")


@dataclass(frozen=True)
class Entry:
    requirement: Requirement
    version: Version


@cache
def entries(lock: str) -> list[Entry]:
    found = []
    for text in ENTRY.findall((ROOT / "requirements" / f"{lock}.txt").read_text()):
        requirement = Requirement(text.partition(" \\")[0])
        (pin,) = requirement.specifier
        found.append(Entry(requirement, Version(pin.version)))
    return found


def here(lock: str) -> dict[str, Version]:
    """What a lock installs on this machine: the entries whose markers are true."""
    return {
        found.requirement.name: found.version
        for found in entries(lock)
        if found.requirement.marker and found.requirement.marker.evaluate()
    }


@cache
def installed(name: str) -> tuple[Version, list[Requirement]]:
    """An installed package's version, and everything that it may need."""
    found = metadata.distribution(name)
    return Version(found.version), [Requirement(line) for line in found.requires or []]


def applies(asked: Requirement, extras: Iterable[str] = ()) -> bool:
    marker = asked.marker
    return not marker or any(marker.evaluate({"extra": extra}) for extra in extras or [""])


def walk(lines: Iterable[str], locked: dict[str, Version]) -> Iterator[Requirement]:
    """Every requirement from these lines down, as far as the locked versions are installed here."""
    waiting = [asked for asked in map(Requirement, lines) if applies(asked)]
    seen = set()
    while waiting:
        asked = waiting.pop()
        yield asked
        name = canonicalize_name(asked.name)
        if (name, frozenset(asked.extras)) in seen:
            continue
        seen.add((name, frozenset(asked.extras)))
        with suppress(metadata.PackageNotFoundError):
            version, further = installed(name)
            if name not in locked or version == locked[name]:
                waiting += [one for one in further if applies(one, asked.extras)]


@pytest.mark.parametrize("lock", ROOTS)
def test_every_line_of_a_lock_is_a_version_with_its_hashes(lock):
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    lines = [line for line in text.splitlines() if not re.match(r" *(#|$)", line)]
    assert "\n".join(lines) == "\n".join(ENTRY.findall(text))
    assert len(entries(lock)) >= 20


@pytest.mark.parametrize("lock", ROOTS)
def test_what_the_project_needs_is_locked_all_the_way_down(lock):
    locked = here(lock)
    torch = {} if lock in BUILDS else {"torch": here("cpu")["torch"]}
    for asked in walk(ROOTS[lock], locked):
        name = canonicalize_name(asked.name)
        version = {**locked, **torch}.get(name)
        assert version, f"requirements/{lock}.txt has no {asked}: make lock"
        assert asked.specifier.contains(version, prereleases=True), (lock, str(asked), version)


@pytest.mark.parametrize("lock", ["cpu", "dev"])
def test_a_lock_holds_nothing_that_nothing_needs(lock):
    locked = here(lock)
    reached = {canonicalize_name(asked.name) for asked in walk(ROOTS[lock], locked)}
    assert set(locked) - {"torch"} == reached - {"torch"}


def test_a_package_has_one_version_in_all_locks():
    versions: dict[str, set[Version]] = {}
    for lock in ROOTS:
        for name, version in here(lock).items():
            versions.setdefault(name, set()).add(Version(version.public))
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_the_cpu_lock_has_the_cpu_build_and_the_cuda_lock_brings_cuda():
    assert (here("cpu")["torch"].local, here("cuda")["torch"].local) == ("cpu", None)
    cuda = {"cuda-bindings", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "triton"}
    assert cuda <= set(here("cuda")) and not cuda & set(here("cpu"))
    assert "torch" not in {*here("dev"), *here("extras")}


def test_this_environment_is_the_locked_one():
    locked = {**here("dev"), **here("cpu")}
    del locked["torch"]  # its build is this machine's
    assert {name: installed(name)[0] for name in locked} == locked
