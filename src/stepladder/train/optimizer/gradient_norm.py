"""The gradients' size: one norm, where it is not finite, and what clipping divides by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from stepladder.plan.layout import SLICES
from stepladder.rungs import ParameterShard
from stepladder.rungs.parameter_shards import local, real, squares
from stepladder.seam.process_groups import gather_tensor
from stepladder.world import World

ADDED = 1e-6  # to the norm, as torch's clip_grad_norm_ does: of a small norm it shows


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
        over = torch.ones_like(norm) if clip is None else ((norm + ADDED) / clip).clamp(min=1.0)
        return over if unscaled else over * scale

    def bad_name(self, *, last: bool) -> str:
        """The first or last parameter whose gradient is not finite. Waits for the device.

        Behind a finite loss badness begins somewhere on the way back, and all before it is bad:
        the last one is nearest to where it began.
        """
        bad = (~torch.isfinite(self.each)).nonzero().flatten().tolist()
        return self.names[bad[-1 if last else 0]] if bad and self.names else ""


Measure = Callable[[Sequence[ParameterShard], World], Norms]


def measure_norms(shards: Sequence[ParameterShard], world: World) -> Norms:
    """Norms of the whole parameters' gradients as they are, loss scale included.

    A piece's squares are added up over the ranks that hold the rest of its parameter, and over
    no rank that holds a copy; stages hold other parameters and add up to the whole.
    """
    having = [shard for shard in shards if shard.gradient is not None]
    each = squares(having).to(world.device) if having else torch.zeros(1, device=world.device)
    axes = {shard.apart for shard in shards if shard.apart}
    return add_over_ranks(having, each, sorted(axes), world)


def add_over_ranks(
    having: Sequence[ParameterShard], each: torch.Tensor, apart: Sequence[str], world: World
) -> Norms:
    """The norms of parameters of which this rank has these squares.

    Args:
        apart: axes along which ranks have other parameters, this one's without a gradient too.
    """
    for kind in sorted({(shard.apart, shard.axes) for shard in having if shard.axes}):
        mine = [i for i, shard in enumerate(having) if (shard.apart, shard.axes) == kind]
        each[mine] = world.sum(each[mine], *kind[1])
    counted = [i for i, shard in enumerate(having) if not (shard.copy or shard.apart)]
    whole = (each if len(counted) == len(having) else each[counted]).sum()
    for axis in apart:
        others = [i for i, shard in enumerate(having) if shard.apart == axis]
        whole = whole + world.sum(each[others].sum(), axis)
    whole = world.sum(whole, "pipeline")
    return Norms([shard.name for shard in having], each.sqrt(), whole.sqrt())


@torch.no_grad()
def measure_in_order(shards: Sequence[ParameterShard], world: World) -> Norms:
    """The same norms, to the last bit whatever the ranks hold of a parameter.

    The squares of each row of a parameter are added up where the row is, the rows of a parameter on
    every rank, then parameters: always in halves, element by element, so that neither a slice's
    size nor a kernel's choice of order changes a bit.
    """
    having = [shard for shard in shards if shard.parameter.grad is not None]
    if not having:
        return measure_norms(shards, world)
    rows = gather_rows(having, [squares_of_rows(shard) for shard in having], world)
    each = torch.stack([add_halves(squares) for squares in rows]).to(world.device)
    return Norms([shard.name for shard in having], each.sqrt(), add_halves(each.clone()).sqrt())


def squares_of_rows(shard: ParameterShard) -> torch.Tensor:
    """The sum of squares of each row of a gradient that this rank has."""
    assert shard.parameter.grad is not None
    gradient = real(local(shard.parameter.grad)).detach()
    if not gradient.numel():
        return gradient.new_zeros(0, dtype=torch.float32)
    by_row = gradient.reshape(len(gradient) if gradient.dim() else 1, -1)
    return add_halves(by_row.float().square().t())


def add_halves(values: torch.Tensor) -> torch.Tensor:
    """The sum along the first dimension, in place: the second half is added to the first."""
    while len(values) > 1:
        half = (len(values) + 1) // 2
        values[: len(values) - half] += values[half:]
        values = values[:half]
    return values[0]


def gather_rows(
    shards: Sequence[ParameterShard], rows: list[torch.Tensor], world: World
) -> list[torch.Tensor]:
    """The squares of all rows of each parameter, from the ranks that have them."""
    sharded = [index for index, shard in enumerate(shards) if has_rows_on_other_ranks(shard)]
    if not sharded:
        return rows
    group = world.group(*SLICES)
    lengths = [len(shards[index].parameter) for index in sharded]
    padded = [-(-length // group.size()) for length in lengths]
    mine = [pad(rows[index], (0, size - len(rows[index]))) for index, size in zip(sharded, padded)]
    every = mine[0].new_empty((group.size(), sum(padded)))
    gather_tensor(every, torch.cat(mine)[None], group=group)
    whole = list(rows)
    for index, length, part in zip(sharded, lengths, every.split(padded, dim=1)):
        whole[index] = part.reshape(-1)[:length].clone()
    return whole


def has_rows_on_other_ranks(shard: ParameterShard) -> bool:
    """Whether other ranks have the other rows of the gradient; ZeRO 1 has whole gradients."""
    return bool(shard.axes) and shard.flat is None
