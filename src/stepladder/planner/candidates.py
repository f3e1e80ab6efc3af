"""Every plan worth a look: layouts that multiply to the cluster's devices, and what fills them.

Ways are powers of two times what the node's size asks for; tensor and context stay inside a node,
where links are fast. The batch is given, so a plan may choose how it is cut but not its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stepladder.hardware import Cluster
from stepladder.plan import Batch, Layout, Plan, Recompute, Schedule
from stepladder.workload import Facts

LONG = 16384  # tokens of a sequence from which slicing it is worth a look
SHORTEST_SLICE = 2048
DEPTHS = (Recompute(), Recompute("selective"), Recompute("blocks"))  # from the fastest down
INTERLEAVED = Schedule("interleaved", 2)
ZERO_BUBBLE = Schedule("zero-bubble", 2)


@dataclass(frozen=True, slots=True)
class Frame:
    """A layout with its data rung and schedule; micro-batch and recomputation are still open."""

    layout: Layout
    zero: int
    schedule: Schedule = Schedule()


def frames(facts: Facts, cluster: Cluster) -> Iterator[Frame]:
    """All frames for the cluster, plainest first."""
    devices = cluster.num_devices
    for pipeline in divisors(devices, max(facts.num_blocks, 1)):
        for context in contexts(facts, cluster):
            for tensor in tensors(facts, cluster):
                data, rest = divmod(devices, pipeline * context * tensor)
                if data and not rest:
                    box = Layout(pipeline=pipeline, context=context, tensor=tensor)
                    yield from data_frames(box, data, cluster)


def data_frames(box: Layout, data: int, cluster: Cluster) -> Iterator[Frame]:
    """The ways to share one copy of the state, or to hold several."""
    yield from scheduled(replace(box, replicate=data), 0)
    shared = data * box.context
    if shared == 1:
        return
    for zero in (1, 2, 3):
        yield from scheduled(replace(box, shard=data), zero)
    node = cluster.devices_per_node // (box.context * box.tensor)
    if 1 < node < data and data % node == 0:
        yield from scheduled(replace(box, replicate=data // node, shard=node), 3)


def scheduled(layout: Layout, zero: int) -> Iterator[Frame]:
    yield Frame(layout, zero)
    if layout.pipeline > 1:
        yield Frame(layout, zero, INTERLEAVED)
        if zero != 3:
            yield Frame(layout, zero, ZERO_BUBBLE)


def divisors(number: int, limit: int) -> list[int]:
    return [n for n in range(1, min(number, limit) + 1) if number % n == 0]


def tensors(facts: Facts, cluster: Cluster) -> list[int]:
    """Powers of two; one where experts would stay whole on every rank and nothing be gained."""
    every = [matrix for part in facts.parts for matrix in part.matrices]
    cuttable = any(matrix.cut for matrix in every) and all(m.experts == 1 for m in every)
    return powers(cluster.devices_per_node if cuttable else 1)


def contexts(facts: Facts, cluster: Cluster) -> list[int]:
    if facts.tokens < LONG:
        return [1]
    return powers(min(facts.tokens // SHORTEST_SLICE, cluster.devices_per_node))


def powers(limit: int) -> list[int]:
    return [2**n for n in range(limit.bit_length()) if 2**n <= limit]


def micro_batches(batch: int, data_ranks: int) -> list[int]:
    """Sizes that cut each rank's share evenly, from the smallest."""
    share, rest = divmod(batch, data_ranks)
    return [] if rest or not share else [n for n in powers(share) if share % n == 0] or [1]


def fill(base: Plan, frame: Frame, batch: int, micro: int, recompute: Recompute) -> Plan:
    passes = batch // (micro * frame.layout.data_ranks)
    return replace(
        base,
        layout=frame.layout,
        zero=frame.zero,  # type: ignore[arg-type]
        schedule=frame.schedule,
        batch=Batch(batch, micro, passes),
        recompute=recompute,
    )
