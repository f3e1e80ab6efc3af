"""Sets of time as sorted, disjoint intervals, with union, intersection and difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NanosecondInterval = tuple[int, int]  # from, up to, in nanoseconds
Intervals = Sequence[NanosecondInterval]


def union(intervals: Iterable[NanosecondInterval]) -> list[NanosecondInterval]:
    """The union of intervals, sorted and disjoint."""
    joined: list[NanosecondInterval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def intersect(one: Intervals, other: Intervals) -> list[NanosecondInterval]:
    """The intersection of two sets."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def subtract(one: Intervals, other: Intervals) -> list[NanosecondInterval]:
    """The first set without the second."""
    left, j = [], 0
    for start, end in one:
        while j < len(other) and other[j][1] <= start:
            j += 1
        at = j
        while at < len(other) and other[at][0] < end:
            if start < other[at][0]:
                left.append((start, other[at][0]))
            start = max(start, other[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return left


def length(intervals: Intervals) -> int:
    return sum(end - start for start, end in intervals)
