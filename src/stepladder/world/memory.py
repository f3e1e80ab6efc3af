"""How much memory this process holds and may hold, read without waiting for the device."""

from __future__ import annotations

import os
import resource

import torch


def peak_bytes(device: torch.device) -> int:
    """The most this process has held: tensors on a GPU, the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak(device: torch.device) -> None:
    """Start a new peak, where the system lets one; a CPU process keeps its highest mark."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def limit_bytes(device: torch.device) -> int:
    """What the device has in all."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
