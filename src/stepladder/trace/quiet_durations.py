"""What operations would take on a quiet machine, from several steps that do the same.

A processor is shared: a step may be stopped in the middle of an operation for longer than the
operation takes. The same operation of another step is seldom stopped too, so the shortest of them
is what it takes. Without this a busy machine would make small operations look like large ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from .intervals import Intervals, length
from .kernel_causes import is_engine, is_launch, op_cause
from .spans import Span, own_moments

Timed = list[tuple[str, int]]  # operations in order, and nanoseconds of their own


def launching_share(
    lanes: Sequence[Sequence[Span]], steps: Intervals, update: Intervals, floor: int
) -> float | None:
    """Of the passes' operations, the share that asks for work; None where nothing was seen."""
    taken = [timed(lanes, step, update) for step in steps]
    longest = max(taken, key=len, default=[])
    alike = [step for step in taken if [name for name, _ in step] == [name for name, _ in longest]]
    launch = work = 0
    for same in zip(*alike):
        name, own = same[0][0], min(each for _, each in same)
        asking = own if is_launch(name) else min(own, floor)
        launch, work = launch + asking, work + own - asking
    return launch / (launch + work) if launch + work else None


def timed(lanes: Sequence[Sequence[Span]], step: tuple[int, int], update: Intervals) -> Timed:
    """The operations of one step's passes, but for collectives and autograd's own time, in which
    a hook may wait for one: both are as long as others take."""
    ends = next((start for start, _ in update if start >= step[0]), step[1])
    inside = [
        [span for span in lane if step[0] <= span.start < min(ends, step[1])] for lane in lanes
    ]
    return [
        (own.chain[-1], length(own.intervals))
        for lane in inside
        for own in own_moments(lane)
        if op_cause(own.chain[-1]) != "communication" and not is_engine(own.chain[-1])
    ]
