"""The wheel, built once from an sdist of this tree and installed where nothing else of it is.

The new environment has its own stepladder and borrows everything else (torch is 200 MB) from the
one that runs the tests, through a line in a .pth file, which comes after its own packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
)
FOLDERS = ("src", "requirements")


# Without the path of whoever runs the tests: it would lead back to the sources.
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def done(*words: str | Path, cwd: Path | None = None) -> str:
    ended = subprocess.run(
        [str(word) for word in words],
        capture_output=True, text=True, timeout=200, cwd=cwd, env=ENVIRON,
    )  # fmt: skip
    assert ended.returncode == 0, f"{' '.join(map(str, words))}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Installed:
    python: Path
    packages: Path

    @property
    def command(self) -> Path:
        return self.python.with_name("stepladder")


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Built:
    """What `make wheel` makes, of a copy: neither this tree nor an older build has a part in it."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="session")
def installed(built, tmp_path_factory) -> Installed:
    home = tmp_path_factory.mktemp("clean")
    done(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    done(*pip, "install", "--quiet", "--no-deps", "--no-index", built.wheel)
    paths = {"base": str(home), "platbase": str(home)}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    borrowed = sysconfig.get_path("purelib")
    (packages / "borrowed.pth").write_text(f"{borrowed}\n")
    return Installed(python, packages)
