"""Spectral norm: its power iteration advances in every forward pass in training.

The estimate of the largest singular value depends on the weight alone. A batch in micro-batches
would advance it several times, and each micro-batch would compute with another weight; see
call_counters.py, which has every one of them advance it from where the batch found it.
"""

from __future__ import annotations

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from stepladder.seam.modules import buffers_of, pre_hooks


def spectral_parts(module: nn.Module) -> list[nn.Module]:
    """Parts that advance a power iteration in training: parametrizations, and hooks of old."""
    return [
        part
        for part in module.modules()
        if type(part).__name__ == "_SpectralNorm"
        or any(isinstance(hook, SpectralNorm) for hook in pre_hooks(part))
    ]


def iterated_buffers(part: nn.Module) -> list[str]:
    """The names of the vectors that such a part iterates."""
    return [name for name in buffers_of(part) if name.endswith(("_u", "_v"))]
