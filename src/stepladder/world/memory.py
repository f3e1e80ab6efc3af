"""How much memory this process holds and may hold, read without waiting for the device."""

from __future__ import annotations

import os
from contextlib import suppress

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
    with open("/proc/self/statm") as line:  # the same count as VmRSS, at a fifth of the time
        return int(line.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def process_bytes(name: str) -> int:
    """A size of this process by the kernel's name for it."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


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
