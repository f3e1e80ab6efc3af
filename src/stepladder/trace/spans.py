"""What a timeline is made of: spans on lanes, and the work that nested spans do themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from .intervals import Interval

Kind = Literal["phase", "op", "runtime", "kernel", "copy", "travel"]

DATA, STEP, UPDATE, SYNC = (
    f"stepladder.{phase}" for phase in ("data", "step", "update", "sync")
)  # the phases that a profiled loop marks
OPTIMIZER = "Optimizer.step"  # how torch's own mark around an optimizer's step begins


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from `start` to `end`, in nanoseconds.

    A lane is a thread of the host, where spans nest, or a stream of the device, where they follow
    each other. A `travel` is a collective under way outside any lane's own work.
    """

    name: str
    start: int
    end: int
    lane: str
    kind: Kind
    asked: int | None = None  # when the host launched it

    @property
    def interval(self) -> Interval:
        return self.start, self.end


@dataclass(frozen=True, slots=True)
class Own:
    """The moments of a nested span in which none of its children ran."""

    chain: tuple[str, ...]  # names from the outermost span to this one
    intervals: tuple[Interval, ...]


def own_moments(spans: Iterable[Span]) -> Iterator[Own]:
    """Each span of one lane with the time it spent itself."""
    open_: list[tuple[Span, list[Interval], int]] = []  # span, its own moments, where they go on

    def close() -> Own:
        span, mine, since = open_.pop()
        if since < span.end:
            mine.append((since, span.end))
        chain = (*(outer.name for outer, _, _ in open_), span.name)
        if open_:
            outer, theirs, _ = open_[-1]
            open_[-1] = (outer, theirs, max(span.end, span.start))
        return Own(chain, tuple(mine))

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
