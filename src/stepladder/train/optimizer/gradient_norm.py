"""The gradients' size: one norm, where it is not finite, and what clipping divides by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stepladder.rungs import ParameterShard
from stepladder.rungs.parameter_shards import squares
from stepladder.world import World


@dataclass(frozen=True, slots=True)
class Norms:
    """Every parameter's gradient norm and the whole's, still on the device."""

    names: Sequence[str]
    each: torch.Tensor  # one norm a parameter that has a gradient
    whole: torch.Tensor

    def bad(self, loss: torch.Tensor) -> torch.Tensor:
        """1.0 where the loss or any gradient is not finite, in the form fused optimizers take."""
        sums = self.whole + loss
        return (
            (sums - sums).ne(0).float()
        )  # 0 unless infinite or NaN: a third of isfinite's kernels

    def divisor(self, scale: torch.Tensor | float, clip: float | None) -> torch.Tensor:
        """What gradients are divided by: the loss scale, and more where the norm exceeds `clip`."""
        unscaled = isinstance(scale, float) and scale == 1
        norm = self.whole if unscaled else self.whole / scale
        over = torch.ones_like(norm) if clip is None else torch.clamp(norm / clip, min=1.0)
        return over if unscaled else over * scale

    def bad_name(self, *, last: bool) -> str:
        """The first or last parameter whose gradient is not finite. Waits for the device.

        Behind a finite loss badness begins somewhere on the way back, and all before it is bad:
        the last one is nearest to where it began.
        """
        bad = (~torch.isfinite(self.each)).nonzero().flatten().tolist()
        return self.names[bad[-1 if last else 0]] if bad and self.names else ""


def measure_norms(shards: Sequence[ParameterShard], world: World) -> Norms:
    """Norms of the whole parameters' gradients as they are, loss scale included.

    A piece's squares are added up over the ranks that hold the rest of its parameter, and over
    no rank that holds a copy; stages hold other parameters and add up to the whole.
    """
    having = [shard for shard in shards if shard.gradient is not None]
    each = squares(having).to(world.device) if having else torch.zeros(1, device=world.device)
    for axes in sorted({shard.axes for shard in having if shard.axes}):
        mine = [index for index, shard in enumerate(having) if shard.axes == axes]
        each[mine] = world.sum(each[mine], *axes)
    counted = [index for index, shard in enumerate(having) if not shard.copy]
    whole = world.sum((each if len(counted) == len(having) else each[counted]).sum(), "pipeline")
    return Norms([shard.name for shard in having], each.sqrt(), whole.sqrt())
