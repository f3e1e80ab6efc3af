"""What one sample's forward pass through a part computes and moves, read off a watched pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from stepladder.workload import Attention, Kept, Launches, Matrix, Moved
from stepladder.workload.facts import Cut, Slow

from .memory_rates import ROUGH
from .operation_recorder import Held, Operation, Part, total
from .saved_for_backward import kept_in

SIDES: dict[str, Cut] = {"column": "columns", "fused": "columns", "row": "inner"}


def matrices_in(part: Part, rows: int, name: str, cuts: Mapping[str, str]) -> tuple[Matrix, ...]:
    """Every product by shape, with the side on which the tensor axis cuts it."""
    found = []
    for done in part.operations:
        if done.product is not None:
            height, inner, columns = done.product
            where = done.where.removeprefix(f"{name}.")
            cut = SIDES.get(cuts.get(where, ""), "")
            size = height // rows, inner, columns
            found.append(Matrix(*size, cut, done.channels, done.wanted, done.experts))
    return tuple(found)


def attention_in(part: Part) -> Attention | None:
    """The part's attention; several are one with as many heads."""
    if not part.attention:
        return None
    first, *others = part.attention
    if any(other != first for other in others):
        first = max(part.attention, key=lambda each: each.flops)
    return first


def moved_in(parts: Sequence[Part], rows: int) -> Moved:
    """What one sample's cheap operations move, one by one and fused."""
    ahead = moved_by([part.operations for part in parts], rows)
    compiled = kept_in([total(fused_moved(part)) for part in parts], rows)
    return replace(ahead, compiled=compiled)


def moved_by(passes: Sequence[Sequence[Operation]], rows: int) -> Moved:
    """What these operations move, each by itself."""
    cheap = [[done for done in each if done.product is None and not done.dear] for each in passes]

    def at(pace: str) -> Kept:
        return kept_in([total(d.moved for d in each if d.pace == pace) for each in cheap], rows)

    own = [done for done in cheap[0] if done.pace not in ("", ROUGH)]
    slow = (Slow(d.pace, d.moved.single / rows, d.lanes) for d in own)
    return Moved(eager=at(""), rough=at(ROUGH), slow=tuple(slow))


def fused_moved(part: Part) -> Iterator[Held]:
    """What each stretch of cheap operations reads from outside and leaves for others."""
    held = {**part.made, **part.inputs}
    for index, stretch in stretches(part):
        made = {key for done in stretch for key in done.writes}
        others = part.operations[:index] + part.operations[index + len(stretch) :]
        wanted = {key for done in others for key in done.reads} | part.saved.keys()
        wanted |= {*part.operations[-1].writes}  # what the part gives away
        read = {key for done in stretch for key in done.reads} - made
        yield total(held.get(key, Held()) for key in read | (made & wanted))


def stretches(part: Part) -> Iterator[tuple[int, list[Operation]]]:
    index = 0
    for dear, run in groupby(
        part.operations, key=lambda done: done.dear or done.product is not None
    ):
        stretch = list(run)
        if not dear:
            yield index, stretch
        index += len(stretch)


def launches_in(parts: Sequence[Part]) -> Launches:
    """Of forward: one an operation, or one a stretch of cheap ones."""
    full, mixed, pure = parts
    dear = sum(done.dear or done.product is not None for done in full.operations)
    fused = dear + sum(1 for _ in stretches(full))
    return Launches(len(pure.operations), len(mixed.operations) + mixed.casts, fused)


def launches_back(passes: Sequence[Sequence[Operation]], ahead: Sequence[Part]) -> Launches:
    """Of backward, which also casts the gradient of each parameter that forward cast.

    Fused, its products are twice the forward's and its stretches as many.
    """
    full, mixed, pure = passes
    _, watched, _ = ahead
    dear = sum(done.dear or done.product is not None for done in full)
    fused = dear + sum(1 for _ in stretches(ahead[0]))
    return Launches(len(pure), len(mixed) + watched.casts, fused)
