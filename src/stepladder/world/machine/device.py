"""Which device this process computes on."""

from __future__ import annotations

import torch

from stepladder.errors import WorldError, nearest

KINDS = ("auto", "cpu", "cuda")


def pick_device(name: str = "auto", local_rank: int = 0) -> torch.device:
    """The named device, or this rank's GPU if there is one, else the CPU."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device(device_name(name, local_rank, found))


def device_name(name: str, local_rank: int, num_cuda: int) -> str:
    """Resolve a device's name on a machine with this many CUDA devices."""
    kind, colon, index = name.partition(":")
    if kind not in KINDS:
        raise WorldError("device", f"'{name}' is not a device", nearest(name, KINDS))
    if colon and not (kind == "cuda" and index.isascii() and index.isdigit() and len(index) < 10):
        problem = f"'{name}' does not number a CUDA device"
        raise WorldError("device", problem, f"Use {kind}, or cuda:0 for the first.")
    if kind == "cpu" or (kind == "auto" and not num_cuda):
        return "cpu"
    if not num_cuda:
        raise WorldError(
            "device",
            f"'{name}' asked for and torch {torch.__version__} sees no CUDA device",
            "Use device=cpu, or run 'stepladder doctor' to see what is missing.",
        )
    wanted = int(index) if colon else local_rank % num_cuda
    if wanted >= num_cuda:
        problem = f"cuda:{wanted} asked for and this machine has {num_cuda}"
        raise WorldError("device", problem, f"Use cuda:0 to cuda:{num_cuda - 1}.")
    return f"cuda:{wanted}"


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
