"""The durations of operations on an idle machine, from several identical steps.

A CPU is shared: an operation may be preempted for longer than it takes. The same operation of
another step seldom is, so the shortest of them is taken. Without this, a busy machine would make
small operations look like large ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from .intervals import Intervals, length
from .kernel_causes import is_engine, is_launch, op_cause
from .spans import Span, self_times

Timed = list[tuple[str, int]]  # operations in order, and nanoseconds of their own


def launching_share(
    lanes: Sequence[Sequence[Span]], steps: Intervals, update: Intervals, floor: int
) -> float | None:
    """The share of operations' time in forward and backward that is launching; None if unknown."""
    taken = [operation_times(lanes, step, update) for step in steps]
    longest = max(taken, key=len, default=[])
    alike = [step for step in taken if [name for name, _ in step] == [name for name, _ in longest]]
    launch = work = 0
    for same in zip(*alike):
        name, own = same[0][0], min(each for _, each in same)
        asking = own if is_launch(name) else min(own, floor)
        launch, work = launch + asking, work + own - asking
    return launch / (launch + work) if launch + work else None


def operation_times(
    lanes: Sequence[Sequence[Span]], step: tuple[int, int], update: Intervals
) -> Timed:
    """The operations of one step's forward and backward, with their own time.

    Without collectives, and without autograd's own time, in which a hook may wait for one: both
    depend on other ranks.
    """
    ends = next((start for start, _ in update if start >= step[0]), step[1])
    inside = [
        [span for span in lane if step[0] <= span.start < min(ends, step[1])] for lane in lanes
    ]
    return [
        (own.chain[-1], length(own.intervals))
        for lane in inside
        for own in self_times(lane)
        if op_cause(own.chain[-1]) != "communication" and not is_engine(own.chain[-1])
    ]
