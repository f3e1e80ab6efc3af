"""The locks install into a fresh environment with the oldest pip that a supported system brings.

Debian 12's Python 3.11.2 has pip 23.0.1. Newer Pythons cannot run it and are tested with their own.
The first test downloads what pip's cache does not have; the others need no network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from .conftest import ENVIRON, FOLDERS, ROOT, SOURCES

pytestmark = pytest.mark.soak

OLDEST_PIP = "pip==23.0.1"
INSTALLER = ROOT / "requirements" / "install.py"


def ask(*words: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True, text=True, timeout=900, env={**ENVIRON, **settings},
    )  # fmt: skip


def succeed(*words: str | Path) -> str:
    done = ask(*words)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def python(tmp_path) -> Path:
    """The Python of an environment that has nothing but a pip."""
    succeed(sys.executable, "-m", "venv", tmp_path / "fresh")
    return tmp_path / "fresh" / "bin" / "python"


@pytest.mark.timeout(1200)
def test_the_oldest_pip_installs_the_lock_and_training_is_ready(python, tmp_path):
    if sys.version_info < (3, 12):
        succeed(python, "-m", "pip", "install", "-qq", OLDEST_PIP)
    told = succeed(python, INSTALLER, "run")
    assert told.startswith("torch 2.") and " build: " in told and told.count("\n") == 1
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, tree)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.egg-info"))
    succeed(python, "-m", "pip", "install", "-qq", "--no-deps", "--no-build-isolation", tree)
    assert "No broken requirements" in succeed(python, "-m", "pip", "check")
    assert "torch" in succeed(python.with_name("stepladder"), "doctor", "--quick")
    again = succeed(python, INSTALLER, "run")  # a second time it keeps the build, and is quick
    assert again.split(":")[0] == told.split(":")[0]


def own_wheel(folder: Path, version: str) -> None:
    """A wheel of the version that the CPU lock names, and with other bytes than PyTorch's."""
    folder.mkdir()
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch.py", "own = True\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def locked_torch() -> str:
    lines = (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch==") and "+cpu" in line).split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyPI's build is the CPU build")
def test_a_machines_own_wheel_is_taken_and_named_although_its_hash_is_unknown(python, tmp_path):
    own_wheel(tmp_path / "own", locked_torch().partition("==")[2])
    done = ask(
        python, INSTALLER, "run", "--torch=cpu",
        PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path / "own"),
    )  # fmt: skip
    own = f"CPU build: TORCH=cpu; a wheel of this machine's own in {tmp_path / 'own'}, whose hash"
    assert own in done.stdout
    assert succeed(python, "-c", "import torch; print(torch.own)") == "True\n"
    assert done.returncode != 0 and "requirements/cpu.txt could not be installed" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyPI's build is the CPU build")
def test_a_wheel_from_a_network_is_refused_when_its_hash_is_unknown(python, tmp_path):
    own_wheel(tmp_path / "own", locked_torch().partition("==")[2])
    serve = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "own"))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{server.server_port}/"
        done = ask(python, INSTALLER, "run", "--torch=cpu", PIP_NO_INDEX="1", PIP_FIND_LINKS=page)
        server.shutdown()
    assert done.returncode != 0
    assert ask(python, "-c", "import torch; torch.own").returncode != 0


def test_an_nvidia_driver_decides_for_the_cuda_lock(python, tmp_path):
    command = tmp_path / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    done = ask(python, INSTALLER, "run", PATH=path, PIP_NO_INDEX="1")
    assert done.stdout.endswith("CUDA build: this machine has an NVIDIA driver\n")
    assert done.returncode != 0 and "requirements/cuda.txt could not be installed" in done.stderr
