"""Straggler detection: which rank the others wait for while a run trains.

At each report every rank leaves a note of its own time a step, which is the step's without what it
spent blocked in collectives. Rank 0 reads the notes of the report before, which lie there by then:
no rank waits for another on account of this. A rank that was slower than the others in several
reports in a row is named, once, and again when it had long recovered in between.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from stepladder.record import Report
from stepladder.trace.profile_verdict import find_stragglers
from stepladder.world import World, peak_memory_bytes
from stepladder.world.ranks.wait_time import CollectiveWaitTimer

IN_A_ROW = 5  # reports in which a rank was slower, before it is named
FORGIVEN = 50  # reports without being slow, after which a rank would be named again


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Of one report: seconds a step by rank, and bytes."""

    step: int
    step_seconds: float
    own_seconds: tuple[float, ...]
    wait_seconds: tuple[float, ...]
    memory_bytes: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {
            "step": self.step,
            "own_seconds": list(self.own_seconds),
            "wait_seconds": list(self.wait_seconds),
            "memory_bytes": list(self.memory_bytes),
        }


@dataclass
class StragglerWatch:
    """Fed with the times of each report; answers with the ranks that are slow in a row."""

    seen: deque[RankTimes] = field(default_factory=lambda: deque(maxlen=IN_A_ROW))
    named: dict[str, int] = field(default_factory=dict)  # reports since it was last slow

    def add(self, times: RankTimes) -> list[str]:
        self.seen.append(times)
        if len(self.seen) < IN_A_ROW:
            return []
        own: Sequence[Sequence[float]] = list(zip(*(each.own_seconds for each in self.seen)))
        slow = [text for text, _ in find_stragglers(own, times.step_seconds)]
        new = [text for text in slow if rank_of(text) not in self.named]
        since = {rank: reports + 1 for rank, reports in self.named.items() if reports < FORGIVEN}
        self.named = {**since, **{rank_of(text): 0 for text in slow}}
        return [f"step {times.step}: {text}" for text in new]


def rank_of(text: str) -> str:
    return text.partition(" is")[0]


class RankTimeExchange:
    """Posts this rank's times and, on rank 0, reads those of all ranks."""

    def __init__(self, world: World, called: nn.Module, taken: int = 0) -> None:
        """
        Args:
            called: what a step calls: DDP's wrapper, where there is one.
            taken: steps so far.
        """
        self.world, self.waiting = world, CollectiveWaitTimer(called)
        self.previous: tuple[int, float] | None = None  # step and seconds of the report before
        self.counted = 0.0  # of the waiting's seconds
        self.last = taken - 1  # step of it

    def __enter__(self) -> RankTimeExchange:
        self.waiting.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.waiting.__exit__(*error)

    def leave(self, report: Report) -> RankTimes | None:
        """Post this report's note; what all ranks left at the report before, if they all did."""
        steps = max(report.step - self.last, 1)
        blocked = (self.waiting.seconds - self.counted) / steps
        blocked = min(blocked + self.waiting.reduction_seconds(), report.seconds)
        self.counted, self.last = self.waiting.seconds, report.step
        mine = [report.seconds - blocked, blocked, peak_memory_bytes(self.world.device)]
        self.world.notes.post(note_name(report.step, self.world.place.rank), json.dumps(mine))
        before, self.previous = self.previous, (report.step, report.seconds)
        return self._read(*before) if before and self.world.is_rank_zero else None

    def _read(self, step: int, seconds: float) -> RankTimes | None:
        board, ranks = self.world.notes, range(self.world.place.num_ranks)
        notes = [board.peek(note_name(step, rank)) for rank in ranks]
        if any(note is None for note in notes):
            return None
        for rank in ranks:
            board.store.delete_key(note_name(step, rank))
        own, waits, memory = zip(*(json.loads(note) for note in notes if note))
        return RankTimes(step, seconds, own, waits, memory)


def note_name(step: int, rank: int) -> str:
    return f"times/{step}/{rank}"
