"""What a part saves for backward when run eagerly, recomputed selectively or compiled.

Eager: what autograd saved. Selective: the part's inputs and the results worth saving. Compiled:
torch's partitioner never recomputes a matmul, nor what a matmul in backward reads; it recomputes
cheap results from the nearest of these.

[Note: three precisions] A pass is recorded in fp32 (F bytes), under bf16 autocast (A) and stored in
bf16 (P). `ElementsByType` has a count for each kind of element, and these three totals determine
them: what halves from F to P is work or residual stream; 2P - F is float32 in every precision; what
autocast has in float32 beyond that is the residual stream; and what A has beyond both are casts.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepladder.workload import ElementsByType

from .operation_recorder import ElementCounts, RecordedOperation, RecordedPart, total

STATISTIC = 1 / 8  # results smaller than this part of an operation's largest are statistics


def saved_eager(part: RecordedPart) -> ElementCounts:
    return total(part.saved.values())


def saved_selective(part: RecordedPart) -> ElementCounts:
    expensive = {key for done in part.operations if done.worth_saving for key in done.writes}
    made = {key: counts for key, counts in part.made.items() if key in expensive}
    return total({**part.inputs, **made}.values())


def saved_compiled(part: RecordedPart) -> ElementCounts:
    known = {**part.inputs, **part.made, **part.saved}
    same = shared_casts(part.operations)
    saved = {same.get(key, key) for key in part.saved}
    kept = {same.get(key, key) for key in never_recomputed(part)} & saved
    makers = {key: done for done in part.operations for key in done.writes}
    wanted, seen = list(saved - kept), set(kept)
    while wanted:
        key = wanted.pop()
        if key in seen:
            continue
        seen.add(key)
        done = makers.get(key)
        if done is None or done.worth_saving:
            kept.add(key)  # an input or a result worth saving: recomputation starts here
        else:
            wanted += [same.get(read, read) for read in done.reads if read != key]
    return total(known[key] for key in kept if key in known)


def never_recomputed(part: RecordedPart) -> set[int]:
    """Inputs, operands and results of matmuls, and statistics."""
    keys = set(part.inputs)
    for done in part.operations:
        if done.worth_saving:
            keys |= {*done.reads, *done.writes}
        largest = max((part.made[k].num_bytes for k in done.writes if k in part.made), default=0.0)
        sizes = {k: part.made[k].num_bytes for k in done.writes if k in part.made}
        keys |= {key for key, size in sizes.items() if size < STATISTIC * largest}
    return keys


def shared_casts(operations: list[RecordedOperation]) -> dict[int, int]:
    """Repeated casts of one tensor, mapped to the first, because a compiler makes one."""
    first: dict[int, int] = {}
    same: dict[int, int] = {}
    for done in operations:
        if done.is_cast and done.reads and done.writes:
            source = same.get(done.reads[0], done.reads[0])
            same[done.writes[0]] = first.setdefault(source, done.writes[0])
    return same


def kept_per_sample(precisions: Sequence[ElementCounts], rows: int) -> ElementsByType:
    """The counts of one sample from the three totals: see [Note: three precisions]."""
    full, mixed, pure = precisions
    single = (2 * pure.num_bytes - full.num_bytes - full.other_bytes) / 4
    residual = max(mixed.single - max(pure.single, 0.0), 0.0)
    work = (full.num_bytes - pure.num_bytes) / 2 - residual
    cast = (mixed.num_bytes - pure.num_bytes) / 2 - residual
    return ElementsByType(
        work / rows, residual / rows, cast / rows, single / rows, full.other_bytes / rows
    )
