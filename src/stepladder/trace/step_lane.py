"""One step as a lane for drawing: slots of equal length, each with its dominant cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .attribute_time import AttributedTime
from .intervals import Intervals, NanosecondInterval, intersect, union

NUM_SLOTS = 200
NS = 1e-9


def step_lane(found: AttributedTime) -> tuple[dict[str, Any], ...]:
    """The last step's causes in order; `start` is in seconds from its beginning."""
    if not found.windows:
        return ()
    window = found.windows[-1]
    taken: list[dict[str, float]] = [defaultdict(float) for _ in range(NUM_SLOTS)]
    for cause, moments in found.claimed.items():
        for at, spent in share_per_slot(intersect(union(moments), [window]), window):
            taken[at][cause] += spent
    names = [max(each, key=lambda cause: each[cause], default="") for each in taken]
    each = (window[1] - window[0]) / NUM_SLOTS * NS
    return tuple(
        {"name": name, "start": start * each, "seconds": count * each}
        for name, start, count in runs(names)
        if name
    )


def share_per_slot(moments: Intervals, window: NanosecondInterval) -> Iterator[tuple[int, float]]:
    """How much of each slot of a window these intervals take."""
    size = (window[1] - window[0]) / NUM_SLOTS
    for start, end in moments:
        low, high = (start - window[0]) / size, (end - window[0]) / size
        for at in range(int(low), min(int(high) + 1, NUM_SLOTS)):
            yield at, min(high, at + 1) - max(low, at)


def runs(names: list[str]) -> Iterator[tuple[str, int, int]]:
    """Merge equal neighbours: name, start, count."""
    start = 0
    for at in range(1, len(names) + 1):
        if at == len(names) or names[at] != names[start]:
            yield names[start], start, at - start
            start = at
