"""How much memory this process holds and may hold, read without waiting for the device."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache

import torch


def peak_bytes(device: torch.device) -> int:
    """The most this process has held: tensors on a GPU, the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # getrusage would also count what the process that started this one held.
    return process_bytes("VmHWM")


def held_bytes(device: torch.device) -> int:
    """What this process holds now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    line = os.pread(kernel_file("statm", os.getpid()), 256, 0)  # VmRSS, at a fifth of the time
    return int(line.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def process_bytes(name: str) -> int:
    """A size of this process by the kernel's name for it."""
    lines = os.pread(kernel_file("status", os.getpid()), 2**14, 0)
    return int(lines[lines.index(name.encode()) :].split(maxsplit=2)[1]) * 1024


@cache
def kernel_file(name: str, process: int) -> int:
    """A handle on what the kernel tells of this process, kept open: a step reads it each time.

    Kept by process, for a forked one would read its parent's.
    """
    return os.open(f"/proc/{process}/{name}", os.O_RDONLY | os.O_CLOEXEC)


def reset_peak(device: torch.device) -> None:
    """Start a new peak, where the system lets one."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError), open("/proc/self/clear_refs", "w") as marks:
        marks.write("5")  # proc(5): resets the peak resident size, and nothing else


def limit_bytes(device: torch.device) -> int:
    """What the device has in all."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
