"""Candidate plans for the search: every layout of the cluster's devices, and what fills it.

Ways are powers of two times what the node's size asks for; tensor, context and experts stay inside
a node, where links are fast. The batch is given: a plan may choose how it is cut but not its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stepladder.hardware import Cluster
from stepladder.plan import BatchSplit, Layout, Plan, Recompute, Schedule
from stepladder.workload import Facts

LONG = 16384  # tokens of a sequence from which slicing it is worth a look
SHORTEST_SLICE = 2048
DEPTHS = (Recompute(), Recompute("selective"), Recompute("blocks"))  # from the fastest down
INTERLEAVED = Schedule("interleaved", 2)
ZERO_BUBBLE = Schedule("zero-bubble", 2)


@dataclass(frozen=True, slots=True)
class PlanSkeleton:
    """A layout with its ZeRO stage and schedule; micro-batch and recomputation are open."""

    layout: Layout
    zero: int
    schedule: Schedule = Schedule()


def plan_skeletons(facts: Facts, cluster: Cluster) -> Iterator[PlanSkeleton]:
    """All frames for the cluster, plainest first."""
    devices = cluster.num_devices
    for pipeline in divisors(devices, max(facts.num_blocks, 1)):
        for context in contexts(facts, cluster):
            for tensor in tensors(facts, cluster):
                data, rest = divmod(devices, pipeline * context * tensor)
                if data and not rest:
                    box = Layout(pipeline=pipeline, context=context, tensor=tensor)
                    for ways in expert_ways(facts, data, cluster):
                        spread = replace(box, experts=ways)
                        yield from data_skeletons(spread, data // ways, cluster)


def data_skeletons(box: Layout, data: int, cluster: Cluster) -> Iterator[PlanSkeleton]:
    """The data-parallel variants of a layout: replicated, ZeRO 1 to 3, hybrid."""
    yield from with_schedules(replace(box, replicate=data), 0)
    shared = data * box.context * box.experts
    if shared == 1:
        return
    for zero in (1, 2, 3):
        yield from with_schedules(replace(box, shard=data), zero)
    node = cluster.devices_per_node // (box.context * box.tensor * box.experts)
    if 1 < node < data and data % node == 0:
        yield from with_schedules(replace(box, replicate=data // node, shard=node), 3)


def with_schedules(layout: Layout, zero: int) -> Iterator[PlanSkeleton]:
    yield PlanSkeleton(layout, zero)
    if layout.pipeline > 1:
        yield PlanSkeleton(layout, zero, INTERLEAVED)
        if zero != 3:
            yield PlanSkeleton(layout, zero, ZERO_BUBBLE)


def divisors(number: int, limit: int) -> list[int]:
    return [n for n in range(1, min(number, limit) + 1) if number % n == 0]


def tensors(facts: Facts, cluster: Cluster) -> list[int]:
    """Powers of two; one where experts would stay whole on every rank and nothing be gained."""
    every = [matrix for part in facts.parts for matrix in part.matmuls]
    cuttable = any(matrix.cut for matrix in every) and all(m.experts == 1 for m in every)
    return powers(cluster.devices_per_node if cuttable else 1)


def contexts(facts: Facts, cluster: Cluster) -> list[int]:
    if facts.tokens < LONG:
        return [1]
    return powers(min(facts.tokens // SHORTEST_SLICE, cluster.devices_per_node))


def expert_ways(facts: Facts, data: int, cluster: Cluster) -> list[int]:
    """Powers of two that divide every mixture's experts and the data ranks, inside a node."""
    counts = {m.experts for part in facts.parts for m in part.matmuls if m.experts > 1}
    ways = powers(cluster.devices_per_node if counts else 1)
    return [n for n in ways if data % n == 0 and all(count % n == 0 for count in counts)]


def powers(limit: int) -> list[int]:
    return [2**n for n in range(limit.bit_length()) if 2**n <= limit]


def micro_batches(batch: int, data_ranks: int) -> list[int]:
    """Sizes that cut each rank's share evenly, from the smallest."""
    share, rest = divmod(batch, data_ranks)
    return [] if rest or not share else [n for n in powers(share) if share % n == 0] or [1]


def fill_skeleton(
    base: Plan, skeleton: PlanSkeleton, batch: int, micro: int, recompute: Recompute
) -> Plan:
    micro_batches = batch // (micro * skeleton.layout.data_ranks)
    return replace(
        base,
        layout=skeleton.layout,
        zero=skeleton.zero,  # type: ignore[arg-type]
        schedule=skeleton.schedule,
        batch=BatchSplit(batch, micro, micro_batches),
        recompute=recompute,
    )
