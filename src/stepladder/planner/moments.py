"""The moments of a step that compete for the peak of its memory.

    loss      the logits and their gradients stand beside everything that forward kept
    first     backward begins: a block rebuilds what it did not keep, its gradients on their way out
    last      backward ends: activations are gone but for one block, all gradients are there
    step      gradients alone, and the last of them still travelling

Between two of them memory runs in a straight line, so its peak is at one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.plan import Plan
from stepladder.workload import Facts

from .kept import block_depths, kept_bytes, mean_bytes, rebuilt_bytes
from .loss import logit_bytes
from .sizes import Sizes, per_rank
from .stages import Stage, held_parameters, in_flight

BUCKET_BYTES = 2 * 25 * 2**20  # of replicated gradients: one filling, one travelling


@dataclass(frozen=True, slots=True)
class Moment:
    """What comes and goes, at one moment."""

    activations: float = 0.0
    logits: float = 0.0
    communication: float = 0.0
    temporary: float = 0.0
    gradients: float = 1.0  # share of all gradients that exist by then
    working: float = 1.0  # share of the working copies that still do

    @property
    def total(self) -> float:
        """Bytes, gradients and working copies left out."""
        return self.activations + self.logits + self.communication + self.temporary


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a stage's blocks keep of one micro-batch."""

    kept: float = 0.0  # by all of them
    largest: float = 0.0  # by the one that holds most, rebuilt in full
    rebuilt: float = 0.0  # beyond what it keeps, while its backward works
    scratch: float = 0.0


def rank_moments(
    facts: Facts, plan: Plan, stage: Stage, index: int, sizes: Sizes
) -> tuple[list[Moment], float]:
    """The moments of one rank, and the bytes of activations that wait in host memory."""
    blocks = count_blocks(plan, stage, sizes)
    flight = in_flight(plan.schedule, plan.layout.pipeline, index, sizes.passes)
    waiting = (blocks.kept + sum(kept_bytes(part, sizes) for part in stage.ends)) * flight
    away = 0.0
    if "activations" in plan.offload:
        near = min(2 * blocks.largest, waiting)  # one leaves or returns while one is used
        waiting, away = near, waiting - near
    none, some = gradient_shares(plan, stage, sizes)
    casts, one = working_shares(plan, stage, sizes)
    travels = travelling_bytes(plan, stage, sizes)
    logits = logit_bytes(facts, sizes) if stage.exit else 0.0
    left = min(blocks.largest, waiting + blocks.rebuilt)
    moments = [
        Moment(waiting, logits, travels.head, 0.0, none),
        Moment(waiting + blocks.rebuilt, 0.0, travels.block, blocks.scratch, some, casts),
        Moment(left, 0.0, travels.block, blocks.scratch, working=one),
        Moment(0.0, 0.0, travels.last, working=one),
    ]
    return moments, away


def count_blocks(plan: Plan, stage: Stage, sizes: Sizes) -> Blocks:
    found = Blocks()
    for part, count in stage.blocks:
        depths = block_depths(part, plan.recompute, stage.num_blocks, sizes)
        each, full = mean_bytes(part, depths, sizes), rebuilt_bytes(part, depths, sizes)
        found = Blocks(
            found.kept + each * count,
            max(found.largest, each, full),
            max(found.rebuilt, full - each),
            max(found.scratch, part.scratch * per_rank(sizes) * sizes.work),
        )
    return found


def gradient_shares(plan: Plan, stage: Stage, sizes: Sizes) -> tuple[float, float]:
    """The share of gradients at the loss and when backward reaches the blocks.

    One rank alone drops them after each step and makes them anew in its first pass; later passes
    find them. Several ranks have buckets that stay.
    """
    if sizes.passes > 1 or plan.layout.data_ways * plan.layout.context > 1:
        return 1.0, 1.0
    exit_ = held_parameters(stage.exit, sizes.tensor) if stage.exit else 0.0
    made = exit_ + largest_block(stage, sizes.tensor)
    return 0.0, min(made / max(stage.parameters(sizes.tensor), 1.0), 1.0)


def working_shares(plan: Plan, stage: Stage, sizes: Sizes) -> tuple[float, float]:
    """The share of working copies when backward begins and when it ends.

    Autocast's copies live as long as what was saved with them: a block that keeps its activations
    frees them one after another, a recomputed one makes and frees its own.
    """
    if sizes.wrapped:
        return 1.0, 1.0
    one = min(
        2 * largest_block(stage, sizes.tensor) / max(stage.parameters(sizes.tensor), 1.0), 1.0
    )
    return (1.0 if plan.recompute.kind in ("none", "every", "budget") else one), one


def largest_block(stage: Stage, tensor: int) -> float:
    return max((held_parameters(part, tensor) for part, _ in stage.blocks), default=0.0)


@dataclass(frozen=True, slots=True)
class Travels:
    """Buffers of gradients and gathered parameters: at the loss, beside a block, at the end."""

    head: float = 0.0
    block: float = 0.0
    last: float = 0.0


def travelling_bytes(plan: Plan, stage: Stage, sizes: Sizes) -> Travels:
    if not sizes.wrapped:
        alone = plan.layout.data_ways * plan.layout.context == 1
        return Travels() if alone else Travels(BUCKET_BYTES, BUCKET_BYTES, BUCKET_BYTES)
    block = largest_block(stage, sizes.tensor)
    ends = sum(held_parameters(part, sizes.tensor) for part in stage.ends)
    head = held_parameters(stage.exit, sizes.tensor) * sizes.work if stage.exit else 0.0
    arriving = block * sizes.work if sizes.zero == 3 else 0.0
    leaving = block * (sizes.work + sizes.reduce)
    return Travels(
        head=head, block=head + arriving + leaving, last=ends * (sizes.work + sizes.reduce)
    )
