"""Which device this process computes on, and what its rate of arithmetic could be."""

from __future__ import annotations

import torch

from stepladder.errors import WorldError, nearest

KINDS = ("auto", "cpu", "cuda")


def pick_device(name: str = "auto", local_rank: int = 0) -> torch.device:
    """The named device, or the best this process has; several ranks spread over several devices."""
    kind, _, index = name.partition(":")
    if kind not in KINDS:
        raise WorldError("device", f"'{name}' is not a device", nearest(name, KINDS))
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise WorldError(
            "device",
            f"'{name}' asked for and torch {torch.__version__} sees no CUDA device",
            "Use device=cpu, or run 'stepladder doctor' to see what is missing.",
        )
    found = torch.cuda.device_count()
    wanted = int(index) if index.isdigit() else local_rank % found
    if wanted >= found:
        raise WorldError("device", f"cuda:{wanted} of {found}", f"Use cuda:0 to cuda:{found - 1}.")
    return torch.device("cuda", wanted)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
