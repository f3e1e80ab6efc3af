"""Whether all ranks were given the same thing: code, torch, plan and script, compared at the start.

Ranks that differ do not fail where they differ. They hang in a collective that only some of them
call, or train on something nobody asked for. So each rank leaves what it has in the store where
the ranks met, rank 0 compares, and all of them raise the same sentence. Only the store is used:
the first collective comes after it.

Ranks also agree on when to stop, for a signal that only one of them saw.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from stepladder.errors import LostRank, WorldError
from stepladder.world.launcher_environment import Place

PACKAGE = Path(__file__).parents[2]
SHOWN = 60  # letters of a fact that are worth printing


def fingerprints() -> dict[str, str]:
    """What this process runs, whatever it was asked to do."""
    sources = sorted(PACKAGE.rglob("*.py"))
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return {
        "torch version": torch.__version__,
        "stepladder's code": digest(*(path.read_bytes() for path in sources)),
        "script": digest(Path(script).read_bytes()) if script and Path(script).exists() else "",
    }


def digest(*parts: bytes) -> str:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return f"#{found.hexdigest()}"


def compare_ranks(
    store: dist.Store, place: Place, facts: Mapping[str, str], timeout_seconds: float
) -> None:
    """Raise on every rank where one of them has other facts than rank 0."""
    # Counted in the store, so that a later comparison never reads what an earlier one left.
    count = store.add(f"stepladder/compared/{place.rank}", 1)
    here = dist.PrefixStore(f"stepladder/compared/{count}", store)
    here.set(str(place.rank), json.dumps(dict(facts)))
    if place.rank == 0:
        given = [
            json.loads(wait_for(here, str(rank), f"rank {rank}", timeout_seconds))
            for rank in range(place.num_ranks)
        ]
        here.set("verdict", differences(given) or "same")
    verdict = wait_for(here, "verdict", "rank 0", timeout_seconds)
    if verdict != "same":
        raise WorldError(
            "world", verdict, "Start every rank with the same files, versions and options."
        )


def wait_for(store: dist.Store, key: str, who: str, timeout_seconds: float) -> str:
    try:
        store.wait([key], timedelta(seconds=timeout_seconds))
        return store.get(key).decode()
    except RuntimeError as lost:
        raise LostRank(
            who,
            f"did not say within {timeout_seconds:g} s what it was started with",
            "Its log says whether it ended; a slow start needs a longer run.timeout_seconds.",
        ) from lost


def differences(given: Sequence[Mapping[str, str]]) -> str:
    """Which ranks differ from rank 0, and in what; nothing where none does."""
    found = []
    for fact, first in given[0].items():
        others = [rank for rank, facts in enumerate(given) if facts.get(fact) != first]
        if others:
            other = given[others[0]].get(fact, "")
            values = "" if hidden(first) or hidden(other) else f" ('{other}' against '{first}')"
            found.append(f"{name_ranks(others)} in {fact}{values}")
    return f"not the same on all ranks: {'; '.join(found)}, compared with rank 0" if found else ""


def hidden(value: str) -> bool:
    return value.startswith("#") or len(value) > SHOWN or "\n" in value or not value


def name_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


class StopVote:
    """Whether all ranks stop: each asks after each step, and all hear the same one step later.

    The vote travels while the next step computes, over processors even where the ranks compute
    on GPUs, so that no step waits for it.
    """

    def __init__(self, num_ranks: int, timeout_seconds: float) -> None:
        limit = timedelta(seconds=timeout_seconds)
        self._group = dist.new_group(backend="gloo", timeout=limit) if num_ranks > 1 else None
        self._vote = torch.zeros(1, dtype=torch.int64)
        self._sent: dist.Work | None = None

    def ask(self, asked: str | None) -> str | None:
        """Vote, and hear what was decided: the signal's name, on every rank after the same step."""
        if self._group is None:
            return asked
        decided = self.hear()
        self._vote = torch.tensor([signal.Signals[asked] if asked else 0])
        self._sent = dist.all_reduce(
            self._vote, dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return decided

    def hear(self) -> str | None:
        """What the last vote decided."""
        if self._sent is not None:
            self._sent.wait()
        number = int(self._vote.item())
        return signal.Signals(number).name if number else None
