"""What a part keeps for backward under each way of running it, read off a watched pass.

Eager: what autograd saved. Selective: the part's inputs and the results that are dear. Compiled:
torch's partitioner never computes a product again, nor what a product in backward must read from
memory; it does compute again what is cheap, from the nearest of these.

[Note: three precisions] A pass is watched in fp32 (F bytes), under bf16 autocast (A) and stored in
bf16 (P). `Kept` has a count for each kind of element, and these three totals fix them: what halves
from F to P is work or stream; what is left at 2P - F is float32 in every precision; what autocast
has in float32 beyond that is the stream; and what A holds beyond both are copies by casting.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepladder.workload import Kept

from .operation_recorder import Held, Operation, Part, total

STATISTIC = 1 / 8  # of an operation's largest result: smaller ones are statistics


def eager_of(part: Part) -> Held:
    return total(part.saved.values())


def selective_of(part: Part) -> Held:
    dear = {key for done in part.operations if done.dear for key in done.writes}
    made = {key: held for key, held in part.made.items() if key in dear}
    return total({**part.inputs, **made}.values())


def compiled_of(part: Part) -> Held:
    known = {**part.inputs, **part.made, **part.saved}
    same = shared_casts(part.operations)
    saved = {same.get(key, key) for key in part.saved}
    kept = {same.get(key, key) for key in must_keep(part)} & saved
    makers = {key: done for done in part.operations for key in done.writes}
    wanted, seen = list(saved - kept), set(kept)
    while wanted:
        key = wanted.pop()
        if key in seen:
            continue
        seen.add(key)
        done = makers.get(key)
        if done is None or done.dear:
            kept.add(key)  # an input or a dear result: here computing again ends
        else:
            wanted += [same.get(read, read) for read in done.reads if read != key]
    return total(known[key] for key in kept if key in known)


def must_keep(part: Part) -> set[int]:
    """Inputs, what products read and made, and statistics."""
    keys = set(part.inputs)
    for done in part.operations:
        if done.dear:
            keys |= {*done.reads, *done.writes}
        largest = max((part.made[k].num_bytes for k in done.writes if k in part.made), default=0.0)
        sizes = {k: part.made[k].num_bytes for k in done.writes if k in part.made}
        keys |= {key for key, size in sizes.items() if size < STATISTIC * largest}
    return keys


def shared_casts(operations: list[Operation]) -> dict[int, int]:
    """Further casts of one tensor, each with the first: a compiler makes one."""
    first: dict[int, int] = {}
    same: dict[int, int] = {}
    for done in operations:
        if done.is_cast and done.reads and done.writes:
            source = same.get(done.reads[0], done.reads[0])
            same[done.writes[0]] = first.setdefault(source, done.writes[0])
    return same


def kept_in(precisions: Sequence[Held], rows: int) -> Kept:
    """One sample's counts from the three totals: see [Note: three precisions]."""
    full, mixed, pure = precisions
    single = (2 * pure.num_bytes - full.num_bytes - full.other_bytes) / 4
    residual = max(mixed.single - max(pure.single, 0.0), 0.0)
    work = (full.num_bytes - pure.num_bytes) / 2 - residual
    cast = (mixed.num_bytes - pure.num_bytes) / 2 - residual
    return Kept(work / rows, residual / rows, cast / rows, single / rows, full.other_bytes / rows)
