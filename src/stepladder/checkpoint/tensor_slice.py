"""Which elements of a tensor a rank owns, as rectangular slices.

A range of a flattened tensor is not one rectangular slice but always a few: the end of a row,
whole rows, the start of a row. So whatever cuts a tensor (ZeRO, tensor or pipeline parallelism),
what a rank owns is written and found again in the same form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A rectangular part of a tensor: its start and its size along every dimension."""

    start: Shape
    size: Shape

    @property
    def count(self) -> int:
        """The number of elements."""
        return prod(self.size)

    def view(self, whole: Tensor) -> Tensor:
        """This part of a tensor, without a copy."""
        return whole[tuple(slice(a, a + n) for a, n in zip(self.start, self.size))]

    def shifted(self, by: Shape) -> TensorSlice:
        return TensorSlice(tuple(a + b for a, b in zip(self.start, by)), self.size)

    def intersection(self, other: TensorSlice) -> TensorSlice | None:
        """The elements that both slices contain."""
        start = tuple(map(max, self.start, other.start))
        stops = (
            min(a + n, b + m) for a, n, b, m in zip(self.start, self.size, other.start, other.size)
        )
        size = tuple(stop - first for stop, first in zip(stops, start))
        return None if any(n <= 0 for n in size) else TensorSlice(start, size)

    def relative_to(self, outer: TensorSlice) -> TensorSlice:
        """The same elements, with positions counted from where `outer` starts."""
        return self.shifted(tuple(-a for a in outer.start))


def whole_slice(shape: Sequence[int]) -> TensorSlice:
    """The slice that covers a whole tensor."""
    return TensorSlice((0,) * len(shape), tuple(shape))


def slices_of_range(shape: Shape, first: int, last: int) -> Iterator[tuple[TensorSlice, slice]]:
    """Cover elements `first` to `last` of the flattened tensor; with each slice its place there."""
    at = first
    while at < last:
        part = largest_slice(shape, at, last)
        yield part, slice(at - first, at - first + part.count)
        at += part.count


def largest_slice(shape: Shape, at: int, last: int) -> TensorSlice:
    """The largest slice of contiguous elements that starts at `at` and ends by `last`."""
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    start = tuple(at // stride % length for stride, length in zip(strides, shape))
    for d, stride in enumerate(strides):
        aligned = at % stride == 0
        if aligned and last - at >= stride:
            run = min(shape[d] - start[d], (last - at) // stride)
            return TensorSlice(start, (1,) * d + (run,) + shape[d + 1 :])
    return TensorSlice(start, ())  # a tensor without dimensions has one element
