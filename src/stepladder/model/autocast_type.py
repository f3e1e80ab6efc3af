"""The type that autocast narrows matmuls to, on any device that a tensor may be on."""

from __future__ import annotations

import torch


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The type on this device; None outside autocast, and on meta, which autocast lacks."""
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)
