"""This process's memory use and its limit, read without synchronising with the device."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache

import torch


def peak_memory_bytes(device: torch.device) -> int:
    """The peak memory of this process: its tensors on a GPU, the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not getrusage, which also counts the memory of the process that forked this one.
    return process_bytes("VmHWM")


def memory_bytes_in_use(device: torch.device) -> int:
    """The memory in use by this process now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    line = os.pread(open_proc_file("statm", os.getpid()), 256, 0)  # VmRSS, five times as fast
    return int(line.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def process_bytes(name: str) -> int:
    """A size from this process's /proc status, by the kernel's name for it."""
    lines = os.pread(open_proc_file("status", os.getpid()), 2**14, 0)
    return int(lines[lines.index(name.encode()) :].split(maxsplit=2)[1]) * 1024


@cache
def open_proc_file(name: str, process: int) -> int:
    """A handle on a file of /proc for this process, kept open because every step reads it.

    Cached by process id, because a forked process would read its parent's.
    """
    return os.open(f"/proc/{process}/{name}", os.O_RDONLY | os.O_CLOEXEC)


def reset_peak(device: torch.device) -> None:
    """Reset the peak, if the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError), open("/proc/self/clear_refs", "w") as marks:
        marks.write("5")  # proc(5): resets the peak resident size, and nothing else


def device_memory_bytes(device: torch.device) -> int:
    """The total memory of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
