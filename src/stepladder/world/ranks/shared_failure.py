"""A rank that raises inside a step ends the others' wait for it, with its reason.

The others may be in a collective or a receive that it will never join, and would learn of it only
by the time-out. So it leaves a note of its error under the number of the step. A rank that is still
inside that step after some seconds waits in vain: its watchdog ends it with the note. One whose
collective fails, because the connection is gone, raises the note instead. Errors that all ranks
raise alike end nobody: each has left the step by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

from stepladder.errors import LostRank

GRACE_SECONDS = 5.0  # for a rank to raise the same error by itself


class SharedFailure:
    """The first error of each step, in the store that all ranks share."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        self.store, self.rank = store, rank
        self.count = 0  # steps so far: the same on every rank
        self.inside = False
        self.seen: tuple[int, float] | None = None  # the step in which a note was found, and when

    @contextmanager
    def during_step(self) -> Iterator[None]:
        """A step that all ranks take together, or leave together."""
        self.count, self.inside = self.count + 1, True
        try:
            yield
        except Exception as error:
            with suppress(RuntimeError):  # the store is lost, and that is the reason
                if (lost := self.post(error)) is not None and is_connection_error(error):
                    raise lost from error
            raise
        finally:
            self.inside = False

    def post(self, error: Exception) -> LostRank | None:
        """Leave a note unless there is one, or a connection failed; another rank's note."""
        if is_connection_error(error):
            return self.read()
        line = (str(error).strip() or "no reason given").splitlines()[0]
        note = {"rank": self.rank, "error": f"{type(error).__name__}: {line}"}
        self.store.compare_set(f"failed/{self.count}", "", json.dumps(note))
        return None

    def read(self) -> LostRank | None:
        """The note of this step, where another rank left it."""
        key = f"failed/{self.count}"
        if not self.store.check([key]):
            return None
        note = json.loads(self.store.get(key))
        if note["rank"] == self.rank:
            return None
        problem = f"left the step with {note['error'].rstrip('.')}"
        return LostRank(f"rank {note['rank']}", problem, "Its own log says where.")

    def waits_in_vain(self) -> str:
        """The reason, where this rank has long been in a step that another rank left."""
        with suppress(RuntimeError):
            if not self.inside or (lost := self.read()) is None:
                return ""
            if self.seen is None or self.seen[0] != self.count:
                self.seen = self.count, time.monotonic()
            over = time.monotonic() - self.seen[1] > GRACE_SECONDS
            return str(lost) if over and self.inside and self.seen[0] == self.count else ""
        return ""


# In errors of gloo, NCCL and the store about a missing rank.
CONNECTION_ERRORS = (
    "gloo", "NCCL", "Timed out", "wait timeout",
    "Connection", "pair closure", "Broken pipe", "Socket",
)  # fmt: skip


def is_connection_error(error: Exception) -> bool:
    words = str(error)
    return isinstance(error, RuntimeError) and any(word in words for word in CONNECTION_ERRORS)
