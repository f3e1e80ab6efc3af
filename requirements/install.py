"""Installs a lock file into the environment of the Python that runs it; pip resolves nothing.

    .venv/bin/python requirements/install.py run [--torch cpu|cuda]   what training needs
    .venv/bin/python requirements/install.py dev                      what tests, lint and docs need
    .venv/bin/python requirements/install.py extras                   what every extra needs

`run` installs requirements/cpu.txt or requirements/cuda.txt and says in one line which and why.
Every file is a wheel whose SHA-256 the lock names, with the one exception that install_cpu_torch
explains. Standard library only: it runs first.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
PYTHONS = ((3, 11), (3, 14))  # torch has wheels for these
CPU_WHEELS = "https://download.pytorch.org/whl/cpu/torch/"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# --no-deps: pip's resolver has nothing to do. --no-compile: of the 10,000 modules Python compiles
# those that are imported, when they are; all of them would take longer than everything else here.
LOCKED = [*PIP, "install", "-qq", "--no-compile", "--no-deps", "--only-binary", ":all:"]
# A look-up that gets no answer ends within half a minute, whatever pip's configuration says.
QUICK = ["--timeout", "15", "--retries", "1"]


def torch_entries(build: str) -> list[str]:
    """torch's entries in the lock of a build, each with its marker and its hashes."""
    return re.findall(r"^torch==.*(?:\n +.*)*", (HERE / f"{build}.txt").read_text(), re.MULTILINE)


def torch_version(build: str) -> str:
    """The version of torch that the lock of a build has for this system."""
    pins = [found.partition("==")[2].split()[0] for found in torch_entries(build)]
    local = [pin for pin in pins if pin.endswith(f"+{build}") and sys.platform == "linux"]
    return (local or pins)[0]


def installed_torch() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def runs(*words: str, **settings: str) -> bool:
    return (
        subprocess.run(words, capture_output=True, env={**os.environ, **settings}).returncode == 0
    )


def wheel_folders() -> list[str]:
    """The folders of this machine that pip's configuration names as places of wheels."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    values = [
        ast.literal_eval(value)
        for name, _, value in (line.partition("=") for line in listed.splitlines())
        if name.endswith("find-links")
    ]
    folders = [word.removeprefix("file://") for value in values for word in value.split()]
    return list(dict.fromkeys(folder for folder in folders if Path(folder).is_dir()))


def install_cpu_torch() -> str | None:
    """Install torch's CPU build and return where its wheel was found; None if it is nowhere.

    A wheel from a folder that pip's configuration names may be the machine owner's own build: it
    is installed although the lock does not know its hash, because whoever fills that folder owns
    the Python too. What comes from a network has to match the lock.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
        lock.write("\n".join(torch_entries("cpu")) + "\n")
        lock.flush()
        hashed = [*LOCKED, *QUICK, "--require-hashes", "-r", lock.name]
        if runs(*hashed):
            return "a wheel found by pip as it is configured"
        for folder in wheel_folders():
            own = [*LOCKED, "--no-index", "--find-links", folder, f"torch=={torch_version('cpu')}"]
            if runs(*own, PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS=""):
                return f"a wheel of this machine's own in {folder}, whose hash is not in the lock"
        if runs(*hashed, "--no-index", "--find-links", CPU_WHEELS):
            return f"a wheel from {CPU_WHEELS}"
    return None


def choose(asked: str | None) -> tuple[str, str]:
    """The build of torch for this machine and the reason; the CPU build is then installed."""
    if asked == "cuda":
        return "cuda", "TORCH=cuda"
    if asked is None and has_nvidia_driver():
        return "cuda", "this machine has an NVIDIA driver"
    if asked is None and installed_torch() == torch_version("cuda"):
        return "cuda", "it is installed already"
    found = install_cpu_torch()
    reason = "TORCH=cpu" if asked else "this machine has no NVIDIA driver"
    if found:
        return "cpu", f"{reason}; {found}"
    if asked:
        sys.exit(
            f"TORCH=cpu: pip finds no wheel of torch {torch_version('cpu')}, and {CPU_WHEELS} does "
            "not answer. Put the wheel into a folder and name it: PIP_FIND_LINKS=folder make …"
        )
    return "cuda", f"{reason}, but no CPU wheel is found; several GB are downloaded"


def install_run(asked: str | None) -> None:
    build, reason = choose(asked)
    print(f"torch {torch_version(build)}, {build.upper()} build: {reason}", flush=True)
    if build == "cuda" and installed_torch() == torch_version("cpu"):
        # pip takes 2.13.0+cpu for 2.13.0, and would leave the CPU build where it is.
        subprocess.run([*PIP, "uninstall", "-qq", "--yes", "torch"], check=True)
    install_lock(build)
    for stamp in Path(sys.prefix).glob(".torch-*"):
        stamp.unlink()
    (Path(sys.prefix) / f".torch-{build}").touch()


def install_lock(name: str) -> None:
    done = subprocess.run([*LOCKED, "--require-hashes", "-r", str(HERE / f"{name}.txt")])
    if done.returncode:
        sys.exit(f"requirements/{name}.txt could not be installed: pip says why above.")


def refuse_other_pythons() -> None:
    """Elsewhere every entry's marker is false, and pip would install nothing without a word."""
    low, high = PYTHONS
    if low <= sys.version_info[:2] <= high and platform.python_implementation() == "CPython":
        return
    name = f"{platform.python_implementation()} {platform.python_version()}"
    sys.exit(
        f"{name}: torch has wheels for CPython 3.{low[1]} to 3.{high[1]}. Name one: make PYTHON=…"
    )


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("what", choices=("run", "dev", "extras"))
    reader.add_argument("--torch", choices=("cpu", "cuda"))
    options = reader.parse_args()
    refuse_other_pythons()
    if options.what == "run":
        install_run(options.torch)
    else:
        install_lock(options.what)


if __name__ == "__main__":
    main()
