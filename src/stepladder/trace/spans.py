"""Spans of a trace: intervals on threads or streams, and the self time of nested spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from .intervals import NanosecondInterval

Kind = Literal["phase", "op", "runtime", "kernel", "copy", "travel"]

DATA, STEP, UPDATE, SYNC = (
    f"stepladder.{phase}" for phase in ("data", "step", "update", "sync")
)  # the phases that a profiled loop marks
OPTIMIZER = "Optimizer.step"  # the prefix of torch's annotation of an optimizer's step


@dataclass(frozen=True, slots=True)
class Span:
    """An operation, kernel or phase from `start` to `end`, in nanoseconds.

    A lane is a host thread, where spans nest, or a device stream, where they follow each other. A
    `travel` is a running collective, which occupies no lane.
    """

    name: str
    start: int
    end: int
    lane: str
    kind: Kind
    launched_at: int | None = None  # when the host launched it

    @property
    def interval(self) -> NanosecondInterval:
        return self.start, self.end


@dataclass(frozen=True, slots=True)
class SelfTime:
    """The time of a nested span in which none of its children ran."""

    chain: tuple[str, ...]  # names from the outermost span to this one
    intervals: tuple[NanosecondInterval, ...]


def self_times(spans: Iterable[Span]) -> Iterator[SelfTime]:
    """The self time of each span of one lane."""
    # Open spans: each with its self time so far, and where that continues.
    open_: list[tuple[Span, list[NanosecondInterval], int]] = []

    def close() -> SelfTime:
        span, mine, since = open_.pop()
        if since < span.end:
            mine.append((since, span.end))
        chain = (*(outer.name for outer, _, _ in open_), span.name)
        if open_:
            outer, theirs, _ = open_[-1]
            open_[-1] = (outer, theirs, max(span.end, span.start))
        return SelfTime(chain, tuple(mine))

    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        while open_ and open_[-1][0].end <= span.start:
            yield close()
        if open_:
            _, mine, since = open_[-1]
            if since < span.start:
                mine.append((since, span.start))
        open_.append((span, [], span.start))
    while open_:
        yield close()
