"""The gradients' size: one norm, where it is not finite, and what clipping divides by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Norms:
    """Every parameter's gradient norm and the whole's, still on the device."""

    names: Sequence[str]
    each: torch.Tensor  # one norm a parameter that has a gradient
    whole: torch.Tensor

    @property
    def bad(self) -> torch.Tensor:
        """1.0 where any gradient is not finite, in the form fused optimizers take."""
        return (~torch.isfinite(self.whole)).float()

    def divisor(self, scale: torch.Tensor | float, clip: float | None) -> torch.Tensor:
        """What gradients are divided by: the loss scale, and more where the norm exceeds `clip`."""
        one = torch.ones_like(self.whole)
        over = one if clip is None else torch.clamp(self.whole / scale / clip, min=1.0)
        return over * scale

    def first_bad(self) -> str | None:
        """The first parameter whose gradient is not finite. Waits for the device."""
        bad = (~torch.isfinite(self.each)).nonzero().flatten().tolist()
        return self.names[bad[0]] if bad else None


def measure_norms(named: Sequence[tuple[str, nn.Parameter]]) -> Norms:
    """Norms of the gradients as they are, loss scale included."""
    having = [(name, p.grad) for name, p in named if p.grad is not None]
    # Summed in fp32 whatever the gradients are: squares of half-precision numbers overflow early.
    each = torch.stack(torch._foreach_norm([g for _, g in having], 2, torch.float32))
    return Norms([name for name, _ in having], each, torch.linalg.vector_norm(each))
