"""Which numbers of a tensor somebody holds: a box of it, or several.

A slice of a tensor's numbers in a row is not a box of its rows and columns, but always a few of
them: the end of a row, whole rows, the start of a row. Everything a rank holds is therefore written
and found again in one way, whatever rung cut it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Part of a tensor: where it starts and how far it goes, along every dimension."""

    start: Shape
    size: Shape

    @property
    def count(self) -> int:
        return prod(self.size)

    def view(self, whole: Tensor) -> Tensor:
        """These numbers of a tensor."""
        return whole[tuple(slice(a, a + n) for a, n in zip(self.start, self.size))]

    def shifted(self, by: Shape) -> Box:
        return Box(tuple(a + b for a, b in zip(self.start, by)), self.size)

    def common(self, other: Box) -> Box | None:
        """What two boxes share."""
        start = tuple(map(max, self.start, other.start))
        stops = (
            min(a + n, b + m) for a, n, b, m in zip(self.start, self.size, other.start, other.size)
        )
        size = tuple(stop - first for stop, first in zip(stops, start))
        return None if any(n <= 0 for n in size) else Box(start, size)

    def inside(self, outer: Box) -> Box:
        """The same numbers, counted from where `outer` starts."""
        return self.shifted(tuple(-a for a in outer.start))


def whole_box(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


def flat_boxes(shape: Shape, first: int, last: int) -> Iterator[tuple[Box, slice]]:
    """The boxes of numbers `first` to `last` in a row, each with its place in that row."""
    at = first
    while at < last:
        box = largest_box(shape, at, last)
        yield box, slice(at - first, at - first + box.count)
        at += box.count


def largest_box(shape: Shape, at: int, last: int) -> Box:
    """The largest box of neighbouring numbers that starts at `at` and ends by `last`."""
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    start = tuple(at // stride % length for stride, length in zip(strides, shape))
    for d, stride in enumerate(strides):
        aligned = at % stride == 0
        if aligned and last - at >= stride:
            run = min(shape[d] - start[d], (last - at) // stride)
            return Box(start, (1,) * d + (run,) + shape[d + 1 :])
    return Box(start, ())  # a tensor without dimensions: its one number
