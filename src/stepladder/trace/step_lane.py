"""One step as a lane that can be drawn: stretches of equal length, each by what took most of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .attribute_time import Reduced
from .intervals import Interval, Intervals, common, union

STRETCHES = 200
NS = 1e-9


def lane_of(found: Reduced) -> tuple[dict[str, Any], ...]:
    """The last step's causes in order; `start` in seconds from its begin."""
    if not found.windows:
        return ()
    window = found.windows[-1]
    taken: list[dict[str, float]] = [defaultdict(float) for _ in range(STRETCHES)]
    for cause, moments in found.claimed.items():
        for at, spent in spread(common(union(moments), [window]), window):
            taken[at][cause] += spent
    names = [max(each, key=lambda cause: each[cause], default="") for each in taken]
    each = (window[1] - window[0]) / STRETCHES * NS
    return tuple(
        {"name": name, "start": start * each, "seconds": count * each}
        for name, start, count in runs(names)
        if name
    )


def spread(moments: Intervals, window: Interval) -> Iterator[tuple[int, float]]:
    """How much of each stretch of a window these moments take."""
    size = (window[1] - window[0]) / STRETCHES
    for start, end in moments:
        low, high = (start - window[0]) / size, (end - window[0]) / size
        for at in range(int(low), min(int(high) + 1, STRETCHES)):
            yield at, min(high, at + 1) - max(low, at)


def runs(names: list[str]) -> Iterator[tuple[str, int, int]]:
    """Equal neighbours as one: name, where it begins, how many."""
    start = 0
    for at in range(1, len(names) + 1):
        if at == len(names) or names[at] != names[start]:
            yield names[start], start, at - start
            start = at
