"""Bytes on a rank by owner, at the moment that needs most.

Three moments compete: the start of backward, when the logits and their gradients stand beside all
activations; the backward pass of a block, which may first rebuild what it did not keep and whose
gradients are on their way out; and the optimizer's step, when activations are gone. Wherever
several readings are possible the larger is taken: a forecast that is too high costs a plan, one
that is too low costs a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.hardware import Cluster
from stepladder.plan import Layout, Plan
from stepladder.record import Calibration, Memory
from stepladder.workload import Facts

from .kept import block_depths, kept_bytes, mean_bytes, rebuilt_bytes
from .loss import logit_bytes
from .sizes import Sizes, per_rank, sizes_of
from .software import OURS, Software
from .stages import Stage, held_parameters, in_flight, stages_of

MIB, GIB = 2**20, 2**30

CONTEXT_BYTES = 600 * MIB  # driver, kernels and libraries of one process on a recent card
COMMUNICATOR_BYTES = 200 * MIB  # channels that one group of ranks keeps open
WORKSPACE_BYTES = 64 * MIB  # what matrix libraries ask for, forward and backward
FRAGMENTS = 0.06  # of what comes and goes: blocks that fit no later tensor
BUCKET_BYTES = 2 * 25 * MIB  # of replicated gradients: one filling, one travelling


@dataclass(frozen=True, slots=True)
class Moment:
    """What comes and goes, at one moment."""

    activations: float = 0.0
    logits: float = 0.0
    communication: float = 0.0
    temporary: float = 0.0

    @property
    def total(self) -> float:
        return self.activations + self.logits + self.communication + self.temporary


def forecast_memory(
    facts: Facts,
    plan: Plan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    software: Software = OURS,
) -> tuple[Memory, int]:
    """Device bytes by owner and host bytes, on the fullest rank of a settled plan."""
    stages = stages_of(facts, plan.layout, plan.schedule)
    ends = {0, len(stages) - 1, max(range(len(stages)), key=lambda i: stages[i].num_blocks)}
    sizes, context = sizes_of(plan, software), context_bytes(plan.layout, cluster, calibration)
    ranks = [rank_memory(facts, plan, stages[i], i, sizes, context) for i in sorted(ends)]
    return max(ranks, key=lambda rank: rank[0].peak_bytes)


def rank_memory(
    facts: Facts,
    plan: Plan,
    stage: Stage,
    index: int,
    sizes: Sizes,
    context: int,
) -> tuple[Memory, int]:
    """One rank's; a processor, whose runtime needs no memory of its own, has no context."""
    held = stage.parameters(sizes.tensor, facts.tied_parameters)
    sliced = sizes.shard if sizes.wrapped else 1
    parameters, gradients = held * sizes.parameter / sliced, held * sizes.gradient / sliced
    optimizer = held * sizes.state / sizes.shard
    working = working_bytes(stage, held, sizes)
    moments, offloaded = rank_moments(facts, plan, stage, index, sizes)
    worst = max(moments, key=lambda moment: moment.total)
    host = offloaded
    if "optimizer" in plan.offload:
        host, optimizer = host + optimizer + gradients, 0.0
    if "parameters" in plan.offload:
        host, parameters, gradients = host + parameters + gradients, 0.0, 0.0
    memory = Memory(
        parameters=round(parameters),
        working=round(working),
        gradients=round(gradients),
        optimizer=round(optimizer),
        activations=round(worst.activations),
        logits=round(worst.logits),
        communication=round(worst.communication),
        temporary=round(worst.temporary) + (WORKSPACE_BYTES if context else 0),
        context=context,
        reserved=round(FRAGMENTS * (worst.total + working)) if context else 0,
    )
    return memory, round(host)


def working_bytes(stage: Stage, held: float, sizes: Sizes) -> float:
    """Parameters in the work type, or gathered for use."""
    if not sizes.wrapped:
        return held * sizes.work if sizes.work < sizes.parameter else 0.0
    if sizes.zero == 2:
        return held * sizes.work  # gathered once, kept until backward is done
    ends = sum(held_parameters(part, sizes.tensor) for part in stage.ends)
    return (ends + 2 * largest_block(stage, sizes.tensor)) * sizes.work  # one works, one arrives


def largest_block(stage: Stage, tensor: int) -> float:
    return max((held_parameters(part, tensor) for part, _ in stage.blocks), default=0.0)


def context_bytes(layout: Layout, cluster: Cluster, calibration: Calibration | None) -> int:
    if cluster.device.is_cpu:
        return 0
    start = (
        calibration.context_bytes if calibration and calibration.context_bytes else CONTEXT_BYTES
    )
    return start + COMMUNICATOR_BYTES * sum(ways > 1 for ways in layout.shape)


def rank_moments(
    facts: Facts, plan: Plan, stage: Stage, index: int, sizes: Sizes
) -> tuple[list[Moment], float]:
    """The moments that compete for the peak, and what activations wait in host memory."""
    flight = in_flight(plan.schedule, plan.layout.pipeline, index, sizes.passes)
    kept, largest, rebuilt, scratch = 0.0, 0.0, 0.0, 0.0
    for part, count in stage.blocks:
        depths = block_depths(part, plan.recompute, stage.num_blocks, sizes)
        each, full = mean_bytes(part, depths, sizes), rebuilt_bytes(part, depths, sizes)
        kept, largest = kept + each * count, max(largest, each, full)
        rebuilt = max(rebuilt, full - each)
        scratch = max(scratch, part.scratch * per_rank(sizes) * sizes.work)
    waiting = (kept + sum(kept_bytes(part, sizes) for part in stage.ends)) * flight
    away = 0.0
    if "activations" in plan.offload:
        near = min(2 * largest, waiting)  # one leaves or returns while one is used
        waiting, away = near, waiting - near
    travels = travelling_bytes(stage, sizes)
    logits = logit_bytes(facts, sizes)
    moments = [
        Moment(waiting, logits if stage.exit else 0.0, travels.head),
        Moment(waiting + rebuilt, 0.0, travels.block, scratch),
        Moment(0.0, 0.0, travels.last),
    ]
    return moments, away


@dataclass(frozen=True, slots=True)
class Travels:
    """Buffers of gradients and gathered parameters, at the three moments."""

    head: float = 0.0
    block: float = 0.0
    last: float = 0.0


def travelling_bytes(stage: Stage, sizes: Sizes) -> Travels:
    if sizes.shard * sizes.context == 1 and not sizes.wrapped:
        return Travels()
    if not sizes.wrapped:
        return Travels(BUCKET_BYTES, BUCKET_BYTES, BUCKET_BYTES)
    block = largest_block(stage, sizes.tensor)
    ends = sum(held_parameters(part, sizes.tensor) for part in stage.ends)
    head = held_parameters(stage.exit, sizes.tensor) * sizes.work if stage.exit else 0.0
    arriving = block * sizes.work if sizes.zero == 3 else 0.0
    leaving = block * (sizes.work + sizes.reduce)
    return Travels(
        head=head, block=head + arriving + leaving, last=ends * (sizes.work + sizes.reduce)
    )
