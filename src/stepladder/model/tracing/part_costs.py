"""The matmuls, memory traffic and kernel launches of one part per sample, from a recorded pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from stepladder.workload import Attention, ElementsByType, Launches, MatmulFacts, MemoryTraffic
from stepladder.workload.facts import Cut, SlowKernel

from .memory_rates import NON_STREAMING
from .operation_recorder import ElementCounts, RecordedOperation, RecordedPart, total
from .saved_for_backward import kept_per_sample

SIDES: dict[str, Cut] = {"column": "columns", "fused": "columns", "row": "inner"}


def matrices_in(
    part: RecordedPart,
    rows: int,
    name: str,
    cuts: Mapping[str, str],
    lists: Mapping[str, int] | None = None,
) -> tuple[MatmulFacts, ...]:
    """Every matmul by shape, with the side on which tensor parallelism cuts it.

    Args:
        lists: experts that are modules, by the name of their list: the matmuls that all of them do
            alike are one, whose rows are dealt among them.
    """
    found, dealt = [], dict[tuple[str, int, int, int], int]()
    for done in part.operations:
        if done.matmul is not None:
            made = done.matmul
            if inside := place_in_list(done.where, lists or {}):
                key = *inside, made.inner, made.columns
                dealt[key] = dealt.get(key, 0) + made.rows
                continue
            where = done.where.removeprefix(f"{name}.")
            cut = SIDES.get(cuts.get(where, ""), "")
            size = made.rows // rows, made.inner, made.columns
            found.append(MatmulFacts(*size, cut, made.channels, made.num_gradients, made.experts))
    for (_, experts, inner, columns), total_rows in dealt.items():
        size = -(-total_rows // rows), inner, columns
        found.append(MatmulFacts(*size, experts=experts, narrows=True))
    return tuple(found)


def place_in_list(where: str, lists: Mapping[str, int]) -> tuple[str, int] | None:
    """Where in an expert of a list, and how many there are; None outside."""
    for name, experts in lists.items():
        if where.startswith(f"{name}."):
            return f"{name}.{where.removeprefix(f'{name}.').partition('.')[2]}", experts
    return None


def attention_in(part: RecordedPart) -> Attention | None:
    """The part's attention; if several differ, the one with the most FLOPs."""
    if not part.attention:
        return None
    first, *others = part.attention
    if any(other != first for other in others):
        first = max(part.attention, key=lambda each: each.flops)
    return first


def moved_in(parts: Sequence[RecordedPart], rows: int) -> MemoryTraffic:
    """The memory traffic of a sample's cheap operations, unfused and fused."""
    ahead = moved_by([part.operations for part in parts], rows)
    compiled = kept_per_sample([total(fused_traffic(part)) for part in parts], rows)
    return replace(ahead, compiled=compiled)


def moved_by(passes: Sequence[Sequence[RecordedOperation]], rows: int) -> MemoryTraffic:
    """The memory traffic of these operations, unfused."""
    cheap = [
        [done for done in each if done.matmul is None and not done.worth_saving] for each in passes
    ]

    def at(rate: str) -> ElementsByType:
        return kept_per_sample(
            [total(d.moved for d in each if d.rate == rate) for each in cheap], rows
        )

    own = [done for done in cheap[0] if done.rate not in ("", NON_STREAMING)]
    slow = (SlowKernel(d.rate, d.moved.single / rows, d.lanes) for d in own)
    return MemoryTraffic(eager=at(""), non_streaming=at(NON_STREAMING), slow=tuple(slow))


def fused_traffic(part: RecordedPart) -> Iterator[ElementCounts]:
    """What each fused run of cheap operations reads from memory and writes for others."""
    counts = {**part.made, **part.inputs}
    for index, run in fusible_runs(part):
        made = {key for done in run for key in done.writes}
        others = part.operations[:index] + part.operations[index + len(run) :]
        wanted = {key for done in others for key in done.reads} | part.saved.keys()
        wanted |= {*part.operations[-1].writes}  # the part's output
        read = {key for done in run for key in done.reads} - made
        yield total(counts.get(key, ElementCounts()) for key in read | (made & wanted))


def fusible_runs(part: RecordedPart) -> Iterator[tuple[int, list[RecordedOperation]]]:
    index = 0
    for expensive, group in groupby(
        part.operations, key=lambda done: done.worth_saving or done.matmul is not None
    ):
        run = list(group)
        if not expensive:
            yield index, run
        index += len(run)


def launches_in(parts: Sequence[RecordedPart]) -> Launches:
    """Kernel launches of forward: one per operation, or one per fused run of cheap ones."""
    full, mixed, pure = parts
    expensive = sum(done.worth_saving or done.matmul is not None for done in full.operations)
    fused = expensive + sum(1 for _ in fusible_runs(full))
    return Launches(len(pure.operations), len(mixed.operations) + mixed.casts, fused)


def launches_back(
    passes: Sequence[Sequence[RecordedOperation]], ahead: Sequence[RecordedPart]
) -> Launches:
    """Kernel launches of backward, which also casts the gradient of each parameter forward cast.

    Fused, it has twice the matmuls of forward and as many runs of cheap operations.
    """
    full, mixed, pure = passes
    _, recorded, _ = ahead
    expensive = sum(done.worth_saving or done.matmul is not None for done in full)
    fused = expensive + sum(1 for _ in fusible_runs(ahead[0]))
    return Launches(len(pure), len(mixed) + recorded.casts, fused)
