"""Checks of this machine by trying each feature: what was seen, and the fix if it failed.

A check that can crash or hang runs in separate processes under a time limit. `absent` means that
there is nothing to try, such as NCCL without a GPU, which is not a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import shared_memory
from pathlib import Path

import torch
import torch.distributed as dist

from stepladder.errors import first_line

OK, FAILED, ABSENT = "ok", "failed", "absent"

MIB = 2**20

NO_GPU = "no GPU here"


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """The result of one check."""

    state: str  # ok, failed or absent
    seen: str
    fix: str = ""
    name: str = ""
    seconds: float = 0.0


def pinned_memory(limit_seconds: float) -> MachineCheck:
    if not torch.cuda.is_available():
        return MachineCheck(ABSENT, f"{NO_GPU}, so nothing to pin memory for")
    try:
        pinned = torch.ones(16 * MIB, dtype=torch.uint8).pin_memory()
    except RuntimeError as error:
        return MachineCheck(
            FAILED, first_line(error), "Raise the locked-memory limit: ulimit -l unlimited."
        )
    return MachineCheck(OK, f"{pinned.numel() // MIB} MiB pinned")


def nccl(limit_seconds: float) -> MachineCheck:
    if not torch.cuda.is_available():
        return MachineCheck(ABSENT, f"{NO_GPU}; gloo serves on a processor")
    if not dist.is_nccl_available():
        return MachineCheck(
            ABSENT, "this torch has no NCCL", "Install torch's CUDA build for Linux."
        )
    fix = "Run again with NCCL_DEBUG=INFO; in a container see that /dev/shm is large enough."
    with tempfile.TemporaryDirectory() as folder:
        return run_probes([("nccl", f"{folder}/meeting")], limit_seconds, fix)


def gloo(limit_seconds: float) -> MachineCheck:
    if not dist.is_gloo_available():
        return MachineCheck(ABSENT, "this torch has no gloo", "Install an official build of torch.")
    fix = "See that the host name resolves, or set GLOO_SOCKET_IFNAME to a network that is up."
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        return run_probes([("gloo", str(r), "2", meeting) for r in (0, 1)], limit_seconds, fix)


def compilation(limit_seconds: float) -> MachineCheck:
    fix = "Train with compile=off, or fix the C++ compiler or Triton below first."
    return run_probes([("compile",)], limit_seconds, fix)


def triton(limit_seconds: float) -> MachineCheck:
    if not torch.cuda.is_available():
        return MachineCheck(ABSENT, f"{NO_GPU} for its kernels")
    return run_probes([("triton",)], limit_seconds, "Install the Triton that this torch asks for.")


def compiler(limit_seconds: float) -> MachineCheck:
    """Build and run a program, since a compiler may lack its headers."""
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    fix = "Install one, for example: apt install g++."
    if found is None:
        return MachineCheck(ABSENT, "no c++, g++ or clang++ on the path", fix)
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "main.cpp"), Path(folder, "main")
        source.write_text(
            "#include <vector>\nint main() { return std::vector<int>(7).size() - 7; }\n"
        )
        try:
            subprocess.run(
                [found, source, "-o", program],
                check=True,
                capture_output=True,
                timeout=limit_seconds,
            )
            subprocess.run([program], check=True, capture_output=True, timeout=limit_seconds)
        except (OSError, subprocess.SubprocessError) as error:
            return MachineCheck(FAILED, f"{found}: {first_line(error)}", fix)
    return MachineCheck(OK, f"{found} built and ran a program")


def cache_folder(limit_seconds: float) -> MachineCheck:
    return try_folders([Path(torch.hub.get_dir()).parent, Path(tempfile.gettempdir())])


def try_folders(folders: list[Path]) -> MachineCheck:
    """Write a file into each."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                file.write(b"0")
        except OSError as error:
            fix = f"Make {folder} writable, or point TORCH_HOME and TMPDIR elsewhere."
            return MachineCheck(FAILED, first_line(error), fix)
    return MachineCheck(OK, f"wrote to {', '.join(map(str, folders))}")


def shared_memory_size(limit_seconds: float) -> MachineCheck:
    return try_shared_memory(Path("/dev/shm"), at_least=256 * MIB)


def try_shared_memory(mount: Path, at_least: int) -> MachineCheck:
    """Allocate some and check how much is free: data loader workers pass batches through it."""
    fix = "In a container start it with --ipc=host, or --shm-size=8g."
    if not mount.exists():
        return MachineCheck(ABSENT, f"no {mount} on this system")
    try:
        block = shared_memory.SharedMemory(create=True, size=MIB)
    except OSError as error:
        return MachineCheck(FAILED, first_line(error), fix)
    block.close()
    block.unlink()
    free = shutil.disk_usage(mount).free
    seen = f"{free / MIB:.0f} MiB free in {mount}"
    return MachineCheck(OK, seen) if free >= at_least else MachineCheck(FAILED, seen, fix)


# In the order a machine is set up: what the later ones need comes first.
CHECKS: dict[str, Callable[[float], MachineCheck]] = {
    "cache folder": cache_folder,
    "shared memory": shared_memory_size,
    "pinned memory": pinned_memory,
    "C++ compiler": compiler,
    "gloo": gloo,
    "NCCL": nccl,
    "triton": triton,
    "torch.compile": compilation,
}


def try_check(name: str, limit_seconds: float) -> MachineCheck:
    """Make one check and time it."""
    started = time.perf_counter()
    check = CHECKS[name](limit_seconds)
    return replace(check, name=name, seconds=time.perf_counter() - started)


def run_probes(probes: list[tuple[str, ...]], limit_seconds: float, fix: str) -> MachineCheck:
    """Run probes in parallel, each in its own process, and combine their results."""
    deadline = time.monotonic() + limit_seconds
    running = [_start(probe) for probe in probes]
    try:
        said = [process.communicate(timeout=_left(deadline)) for process in running]
    except subprocess.TimeoutExpired:
        return MachineCheck(FAILED, f"not finished after {limit_seconds:g} s", fix)
    finally:
        for process in running:
            _end(process)
    failures = [_last_line(errors) for run, (_, errors) in zip(running, said) if run.returncode]
    if failures:
        return MachineCheck(FAILED, failures[0], fix)
    return MachineCheck(OK, _last_line(said[0][0]))


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)


def _start(probe: tuple[str, ...]) -> subprocess.Popen[str]:
    # This process's sys.path, so that a checkout that is not installed is found as well.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from stepladder.world.machine.check_programs import main\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", f"{program}main(*{probe!r})"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what it starts can be ended with it
    )


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a probe that still runs, with its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "ended without a word"
