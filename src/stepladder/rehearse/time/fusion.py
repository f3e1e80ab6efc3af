"""What a compiler makes of a step: chains of cheap operations become one kernel each.

Products, convolutions, attention, updates and whatever moves elements by index stay by themselves.
What lies between them is fused: a kernel reads what others made and writes what others need. A
value of the forward pass that only fused kernels of the backward pass ask for is not kept: it is
computed again from what its own kernel read, as the compiler's partition of the two passes does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from .operations import ALIGNED, ASKING, MEMORY, PRODUCT, Operation, Piece

APART = (
    "embedding_dense_backward", "index_put", "index_put_", "_index_put_impl_", "scatter",
    "scatter_add", "sort", "topk", "max_pool2d_with_indices_backward", "copy_", "cumsum",
    "nonzero", "_unique2", "sum", "_cudnn_rnn", "_thnn_fused_lstm_cell",
)  # fmt: skip
DROPOUT = "native_dropout"
DRAWN_BYTES = 30  # whose time drawing a random number takes, on an H200
SMALL = 16  # times smaller than the largest that its kernel writes: a statistic, which is kept


@dataclass(slots=True, eq=False)
class Group:
    """Operations that become one kernel."""

    phase: str
    level: int
    fused: bool
    operations: list[Operation] = field(default_factory=list)
    made: dict[int, Piece] = field(default_factory=dict)  # by storage
    kept: dict[int, Piece] = field(default_factory=dict)  # that others need


def fused(operations: Sequence[Operation]) -> list[Operation]:
    """The same step, as a compiler would run it."""
    groups = grouped(operations)
    maker = {storage: group for group in groups for storage in group.made}
    for group in groups:
        for piece in outside(group, maker):
            made_by = maker.get(piece.storage)
            if made_by is not None and must_keep(piece, made_by, group):
                made_by.kept[piece.storage] = piece
    made = [kernel(group, maker) for group in groups]
    return list(padded(made))


def padded(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Products of 16 bits whose rows are no multiple of 16 bytes are padded by the compiler: it
    copies the larger operand once, and the fast kernels take it."""
    copied: set[int] = set()
    for one in operations:
        if one.kind != PRODUCT or all(shape.aligned == ALIGNED for shape in one.products):
            yield one
            continue
        largest = max(one.reads, key=lambda piece: piece.num_bytes)
        if largest.storage not in copied:
            copied.add(largest.storage)
            yield Operation("padded", MEMORY, one.phase, one.compute, (largest,), (largest,))
        yield replace(one, products=tuple(s._replace(aligned=ALIGNED) for s in one.products))


def grouped(operations: Sequence[Operation]) -> list[Group]:
    groups: list[Group] = []
    maker: dict[int, Group] = {}
    for one in operations:
        if one.kind == ASKING:
            continue
        free = one.kind == MEMORY and one.tensors == 1 and one.name not in APART
        before = [maker[p.storage] for p in one.reads if p.storage in maker]
        level = max((each.level + (not each.fused) for each in before), default=0)
        home = None
        if free:
            alike = [g for g in before if g.fused and (g.level, g.phase) == (level, one.phase)]
            home = alike[-1] if alike else None
        if home is None:
            home = Group(one.phase, level, free)
            groups.append(home)
        home.operations.append(one)
        for piece in one.writes:
            home.made[piece.storage] = piece
            maker[piece.storage] = home
    return groups


def outside(group: Group, maker: dict[int, Group]) -> list[Piece]:
    """What a group reads and did not make, the most of each storage."""
    found: dict[int, Piece] = {}
    for one in group.operations:
        for piece in one.reads:
            if maker.get(piece.storage) is not group:
                known = found.get(piece.storage)
                if known is None or known.elements < piece.elements:
                    found[piece.storage] = piece
    return list(found.values())


def must_keep(piece: Piece, made_by: Group, reader: Group) -> bool:
    """Whether a value is written down for this reader, and not computed again by it."""
    if not (made_by.fused and reader.fused) or made_by.phase == reader.phase:
        return True
    largest = max(each.elements for each in made_by.made.values())
    return piece.elements * SMALL <= largest


def drawn(group: Group) -> Iterator[Piece]:
    """The random numbers of its dropouts, as bytes that would take as long to move."""
    for one in group.operations:
        if one.name == DROPOUT:
            yield max(one.writes, key=lambda piece: piece.elements)._replace(size=DRAWN_BYTES)


def kernel(group: Group, maker: dict[int, Group]) -> Operation:
    """One kernel: what it reads, values that it computes again from what they were made of."""
    first = group.operations[0]
    if not group.fused:
        return first
    reads: dict[int, Piece] = {}
    for piece in outside(group, maker):
        made_by = maker.get(piece.storage)
        again = made_by is not None and made_by.fused and piece.storage not in made_by.kept
        sources = outside(made_by, maker) if made_by is not None and again else [piece]
        for each in sources:
            known = reads.get(each.storage)
            if known is None or known.elements < each.elements:
                reads[each.storage] = each
    writes = tuple(group.kept.values()) or tuple(group.operations[-1].writes)
    compute = first.compute
    moved = (*reads.values(), *drawn(group))
    return Operation("fused", MEMORY, group.phase, compute, moved, writes)
