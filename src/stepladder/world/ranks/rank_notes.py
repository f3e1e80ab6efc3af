"""Notes between ranks, through the rendezvous store and without collectives.

So a thread may use them while the main thread trains, and a rank that never answers causes a
time-out rather than a hang.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from stepladder.errors import LostRank
from stepladder.seam.process_groups import default_store

POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class RankNotes:
    """A key-value store of short texts that all ranks can read and write."""

    store: dist.Store = field(default_factory=dist.HashStore)  # local for a world of one rank

    @classmethod
    def shared(cls) -> RankNotes:
        """The notes that all ranks of this world share."""
        return cls(dist.PrefixStore("board", default_store()))

    def post(self, name: str, text: str) -> None:
        self.store.set(name, text)

    def post_once(self, name: str, text: str) -> str:
        """Post a note unless another rank was first; returns the one that was posted first."""
        return self.store.compare_set(name, "", text).decode()

    def has(self, name: str) -> bool:
        return bool(self.store.check([name]))

    def read(self, name: str, timeout_seconds: float) -> str:
        """Wait for a note.

        Polls rather than waiting inside the store, which would block it for every other thread of
        this process.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self.store.check([name]):
            if time.monotonic() > deadline:
                raise LostRank(
                    "world",
                    f"no word of {name} within {timeout_seconds:g} s",
                    "See the log of the rank that should have sent it.",
                )
            time.sleep(POLL_SECONDS)
        self.store.set_timeout(timedelta(seconds=timeout_seconds))
        return self.store.get(name).decode()

    def peek(self, name: str) -> str | None:
        """A note if it is there, without waiting."""
        return self.store.get(name).decode() if self.store.check([name]) else None

    def take(self, name: str, timeout_seconds: float) -> str:
        """Wait for a note and delete it, since the store is in a process's memory."""
        text = self.read(name, timeout_seconds)
        self.store.delete_key(name)
        return text
