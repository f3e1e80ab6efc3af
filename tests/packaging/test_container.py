"""The container file names what exists; it is not built here, where nothing builds containers."""

from __future__ import annotations

import re
import tomllib

import pytest

from .conftest import FOLDERS, ROOT, SOURCES

pytestmark = pytest.mark.soak

TEXT = (ROOT / "Containerfile").read_text()
LINES = re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
STEPS = [tuple(line.split(None, 1)) for line in LINES if line]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def those(name: str) -> list[str]:
    return [words for step, words in STEPS if step == name]


def test_every_step_is_one():
    known = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in STEPS} <= known


def test_what_is_copied_exists_and_reaches_the_builder():
    copied = [
        word for words in those("COPY") if "--from" not in words for word in words.split()[:-1]
    ]
    assert {*FOLDERS, *SOURCES} == set(copied)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    assert kept == set(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_it_runs_our_python_and_our_command():
    least = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    for image in those("FROM"):
        version = re.match(r"docker\.io/library/python:(\d+)\.(\d+)-slim\b", image)
        assert version and tuple(map(int, version.groups())) >= least, image
    assert those("ENTRYPOINT") == ['["stepladder"]'] and "stepladder" in PROJECT["scripts"]


def test_nobody_in_it_is_root_and_nothing_is_unpinned():
    users = [index for index, (name, _) in enumerate(STEPS) if name == "USER"]
    entry = next(index for index, (name, _) in enumerate(STEPS) if name == "ENTRYPOINT")
    assert users and users[-1] < entry and STEPS[users[-1]][1] != "root"
    installs = [words for words in those("RUN") if "pip install" in words]
    assert installs and all("--no-deps --no-build-isolation" in words for words in installs)
    locked = " ".join(words for words in those("RUN") if "requirements/install.py" in words)
    assert "install.py run --torch=${TORCH}" in locked and "install.py extras" in locked
