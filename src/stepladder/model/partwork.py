"""What one sample's forward pass through a part computes and moves, read off a watched pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from stepladder.workload import Attention, Matrix, Moved
from stepladder.workload.facts import Cut

from .watch import Operation, Part

SIDES: dict[str, Cut] = {"column": "columns", "fused": "columns", "row": "inner"}


def matrices_in(part: Part, rows: int, name: str, cuts: Mapping[str, str]) -> tuple[Matrix, ...]:
    """Every product by shape, with the side on which the tensor axis cuts it."""
    found = []
    for done in part.operations:
        if done.product is not None:
            height, inner, columns = done.product
            where = done.where.removeprefix(f"{name}.")
            found.append(Matrix(height // rows, inner, columns, SIDES.get(cuts.get(where, ""), "")))
    return tuple(found)


def attention_in(part: Part) -> Attention | None:
    """The part's attention; several are one with as many heads."""
    if not part.attention:
        return None
    first, *others = part.attention
    if any(other != first for other in others):
        first = max(part.attention, key=lambda each: each.flops)
    return first


def moved_in(part: Part, rows: int) -> Moved:
    """Elements of one sample that cheap operations move, one by one and fused."""
    eager = sum(done.moved for done in part.operations if done.product is None and not done.dear)
    return Moved(eager / rows, sum(fused_moved(part)) / rows)


def fused_moved(part: Part) -> Iterator[float]:
    """What each stretch of cheap operations reads from outside and leaves for others."""
    elements = {
        key: held.narrow + held.single for key, held in {**part.made, **part.inputs}.items()
    }
    for index, stretch in stretches(part):
        made = {key for done in stretch for key in done.writes}
        others = part.operations[:index] + part.operations[index + len(stretch) :]
        wanted = {key for done in others for key in done.reads} | part.saved.keys()
        wanted |= {*part.operations[-1].writes}  # what the part gives away
        read = {key for done in stretch for key in done.reads} - made
        yield sum(elements.get(key, 0.0) for key in read | (made & wanted))


def stretches(part: Part) -> Iterator[tuple[int, list[Operation]]]:
    index = 0
    for dear, run in groupby(
        part.operations, key=lambda done: done.dear or done.product is not None
    ):
        stretch = list(run)
        if not dear:
            yield index, stretch
        index += len(stretch)


def kernels_in(part: Part) -> tuple[int, int]:
    """Launches: one an operation, or one a stretch of cheap ones."""
    dear = sum(done.dear or done.product is not None for done in part.operations)
    return len(part.operations), dear + sum(1 for _ in stretches(part))
