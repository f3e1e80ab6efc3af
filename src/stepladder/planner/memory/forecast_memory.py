"""The memory forecast of a plan: bytes by owner on the fullest rank, at the step's peak.

Wherever several readings are possible the larger is taken: a forecast that is too high costs a
plan, one that is too low costs a run.
"""

from __future__ import annotations

from dataclasses import replace

from stepladder.hardware import Cluster
from stepladder.plan import Layout, Plan, SettledPlan
from stepladder.planner.legality import settle_unchecked
from stepladder.planner.pipeline_stages import Stage, stages_of
from stepladder.planner.training_software import OURS, Software
from stepladder.record import Calibration, Interval, Memory
from stepladder.workload import Facts

from .byte_sizes import Sizes, sizes_of
from .step_moments import Moment, rank_moments

MIB, GIB = 2**20, 2**30
Moments = tuple[tuple[str, Memory], ...]  # by name, in the order of a step

CONTEXT_BYTES = 600 * MIB  # driver, kernels and libraries of one process on a recent card
COMMUNICATOR_BYTES = 200 * MIB  # channels that one group of ranks keeps open
# What matrix libraries ask for: 32 MiB for each of two handles, forward's and backward's, and up to
# a MiB for each processor where they cut a long inner side into pieces that are added up later.
WORKSPACE_BYTES = (2 * 32 + 100) * MIB
# Of what comes and goes: blocks that fit no later tensor. 154 steps on an H200 held from 0.01 to
# 0.64 beyond what they used (networks on images most), 19 in 20 of them less than 0.3.
FRAGMENTS, MOST_FRAGMENTS = 0.07, 0.3
# Of its tensors, by which another program's peak lies below or above, 9 in 10 times.
UNSEEN_LESS, UNSEEN_MORE = 0.18, 0.06


def forecast_memory(
    facts: Facts,
    plan: Plan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    software: Software = OURS,
) -> tuple[Memory, int]:
    """Device bytes by owner and host bytes, on the fullest rank of a settled plan."""
    moments, host = fullest_rank(facts, plan, cluster, calibration, software)
    return fullest(moments)[1], host


def forecast_moments(
    facts: Facts,
    plan: Plan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    software: Software = OURS,
) -> Moments:
    """The same rank's memory at every moment of its step that competes for the peak, in order."""
    return fullest_rank(facts, plan, cluster, calibration, software)[0]


def fullest_rank(
    facts: Facts,
    plan: Plan,
    cluster: Cluster,
    calibration: Calibration | None,
    software: Software,
) -> tuple[Moments, int]:
    stages = stages_of(facts, plan.layout, plan.schedule, software.cuts)
    ends = {0, len(stages) - 1, max(range(len(stages)), key=lambda i: stages[i].num_blocks)}
    sizes = sizes_of(facts, settle_unchecked(plan, cluster), software)
    context = context_bytes(plan.layout, cluster, calibration)
    ranks = [rank_memory(facts, plan, stages[i], i, sizes, context) for i in sorted(ends)]
    return max(ranks, key=lambda rank: fullest(rank[0])[1].peak_bytes)


def peak_interval(memory: Memory, software: Software = OURS) -> Interval:
    """The 90 % interval of the peak, which varies with the allocator's fragmentation.

    Of another program less is known: what its modules keep, and when it lets go of it.
    """
    least = memory.peak_bytes - memory.reserved
    coming_and_going = memory.activations + memory.logits + memory.communication + memory.working
    coming_and_going += max(memory.temporary - WORKSPACE_BYTES, 0)
    stale = memory.reserved - FRAGMENTS * coming_and_going
    most = least + stale + MOST_FRAGMENTS * coming_and_going
    if software is OURS:
        return Interval(least, most)
    tensors = least - memory.context
    return Interval(least - UNSEEN_LESS * tensors, most + UNSEEN_MORE * tensors)


def fullest(moments: Moments) -> tuple[str, Memory]:
    return max(moments, key=lambda moment: moment[1].allocated_bytes)


def rank_memory(
    facts: Facts,
    plan: Plan,
    stage: Stage,
    index: int,
    sizes: Sizes,
    context: int,
) -> tuple[Moments, int]:
    """One rank's; a processor, whose runtime needs no memory of its own, has no context."""
    parameters, gradients, optimizer = state_bytes(facts, stage, sizes)
    host = 0.0
    if sizes.settled.offloads_parameters:  # and with them whatever is made of them
        host, parameters, gradients, optimizer = parameters + gradients + optimizer, 0.0, 0.0, 0.0
    elif sizes.settled.offloads_optimizer:
        # The host updates a copy of its own, from a copy of the gradients.
        copies = (parameters + gradients) / (1 if sizes.wrapped else sizes.shard)
        host, optimizer = optimizer + copies, 0.0
    moments, away = rank_moments(facts, plan, stage, index, sizes)
    if not gradients:
        moments = [replace(moment, gradients=0.0) for moment in moments]
    if plan.recheck:  # the state before a step, kept until two tries of it agree
        copy = parameters + optimizer
        moments = [replace(moment, temporary=moment.temporary + copy) for moment in moments]
    named = tuple((m.name, memory_at(m, parameters, optimizer, context)) for m in moments)
    return named, round(host + away)


def memory_at(moment: Moment, parameters: float, optimizer: float, context: int) -> Memory:
    """All owners at one moment."""
    return Memory(
        parameters=round(parameters),
        working=round(moment.working),
        gradients=round(moment.gradients),
        optimizer=round(optimizer),
        activations=round(moment.activations),
        logits=round(moment.logits),
        communication=round(moment.communication),
        temporary=round(moment.temporary) + (WORKSPACE_BYTES if context else 0),
        context=context,
        reserved=round(FRAGMENTS * moment.transient + moment.stale) if context else 0,
    )


def forecast_state(facts: Facts, plan: Plan, software: Software = OURS) -> tuple[Memory, ...]:
    """The training state of a rank of each pipeline stage, wherever it is kept."""
    sizes = sizes_of(facts, SettledPlan(plan), software)
    states = [
        state_bytes(facts, stage, sizes) for stage in stages_of(facts, plan.layout, plan.schedule)
    ]
    return tuple(
        Memory(parameters=round(held), gradients=round(gradients), optimizer=round(optimizer))
        for held, gradients, optimizer in states
    )


def state_bytes(facts: Facts, stage: Stage, sizes: Sizes) -> tuple[float, float, float]:
    """Bytes of parameters, gradients and optimizer state."""
    held = stage.parameters(sizes.tensor, facts.tied_parameters)
    sliced = sizes.shard if sizes.wrapped else 1
    trained = stage.trained(sizes.tensor, facts.tied_parameters)
    # Slices are over the experts axis too, whether it divides a parameter or holds copies of it.
    elsewhere = stage.on_other_ranks(sizes.experts)
    gone = 0.0 if sizes.wrapped else elsewhere
    spared = stage.narrowed(sizes.tensor) * (sizes.parameter - sizes.narrowed)
    spared += stage.packed * (sizes.parameter - 1)
    parameters = ((held - gone) * sizes.parameter - spared) / sliced
    gradients = (trained - gone) * sizes.gradient / sliced
    matrices = stage.matrices(sizes.tensor)
    state = (trained - matrices) * sizes.state + matrices * sizes.matrix_state
    state -= 0.0 if sizes.zero else elsewhere * sizes.state
    return parameters, gradients, state / sizes.shard + stage.matrix_rows * sizes.row_state


def context_bytes(layout: Layout, cluster: Cluster, calibration: Calibration | None) -> int:
    if cluster.device.is_cpu:
        return 0
    start = (
        calibration.context_bytes if calibration and calibration.context_bytes else CONTEXT_BYTES
    )
    return start + COMMUNICATOR_BYTES * sum(ways > 1 for ways in layout.shape)
