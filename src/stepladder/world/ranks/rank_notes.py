"""Notes between ranks, left in the store where they met; nobody takes part in a collective.

So a thread may use it while the main thread trains, and a rank that never answers costs a time-out
and not a hang.
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
class Board:
    store: dist.Store = field(default_factory=dist.HashStore)  # of its own for a world of one

    @classmethod
    def shared(cls) -> Board:
        """The board that all ranks of this world see."""
        return cls(dist.PrefixStore("board", default_store()))

    def post(self, name: str, text: str) -> None:
        self.store.set(name, text)

    def settle(self, name: str, text: str) -> str:
        """Post a note unless another rank was first; the note that stands, the same for all."""
        return self.store.compare_set(name, "", text).decode()

    def has(self, name: str) -> bool:
        return bool(self.store.check([name]))

    def read(self, name: str, timeout_seconds: float) -> str:
        """A note, as soon as it is there.

        Asks again and again rather than waiting inside the store, which would keep every other
        thread of this process from using it.
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

    def glance(self, name: str) -> str | None:
        """A note if it is there now."""
        return self.store.get(name).decode() if self.store.check([name]) else None

    def take(self, name: str, timeout_seconds: float) -> str:
        """A note, which is then gone: the store is a process's memory."""
        text = self.read(name, timeout_seconds)
        self.store.delete_key(name)
        return text
