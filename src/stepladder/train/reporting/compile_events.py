"""What a run says of the compiler: what a step compiled, and how long that took.

A step that compiles takes a hundred times as long as others. A batch of another length is compiled
once more, with lengths left open, and that graph serves all that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from stepladder.seam.inductor import Compilations, watch_compilations


class Steps(Protocol):
    """What takes steps, and has events."""

    index: int
    events: list[str]


@dataclass(slots=True)
class CompileEvents:
    """Counts what the steps of one run compile."""

    watched: Compilations | None = None  # None: nothing of it is compiled
    graphs: int = 0  # by steps of this run

    @classmethod
    def of(cls, compiles: bool) -> CompileEvents:
        return cls(watch_compilations() if compiles else None)

    @contextmanager
    def recording_events(self, engine: Steps) -> Iterator[None]:
        """A step, after which what it compiled is among the events."""
        if self.watched is None:
            yield
            return
        self.watched.listen()
        index, graphs, seconds = engine.index, self.watched.graphs, self.watched.seconds
        yield
        if new := self.watched.graphs - graphs:
            said = self.sentence(new, self.watched.seconds - seconds)
            engine.events.append(f"step {index}: {said}")

    def sentence(self, new: int, seconds: float) -> str:
        before, self.graphs = self.graphs, self.graphs + new
        what = f"compiled {new} graph{'s' * (new > 1)} in {seconds:.3g} s"
        return f"{what}, {self.graphs} so far" if before else what
