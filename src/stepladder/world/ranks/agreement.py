"""Agreement of ranks: the same code, torch, plan and script at the start, and a vote on stopping.

Ranks that differ do not fail where they differ: they hang in a collective that only some of them
call, or train something nobody asked for. So each rank writes its facts to the rendezvous store,
rank 0 compares them, and all ranks raise the same error. Only the store is used, since this comes
before the first collective.

Ranks also vote on stopping, because a signal may reach only one of them.
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
SHOWN = 60  # characters of a fact worth printing


def fingerprints() -> dict[str, str]:
    """Hashes and versions of the code that this process runs."""
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
    """Raise on every rank if one of them has other facts than rank 0."""
    # Numbered in the store, so that a later comparison never reads an earlier one's facts.
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
    """Which ranks differ from rank 0, and in what; empty if none does."""
    found = []
    for fact, first in given[0].items():
        others = [rank for rank, facts in enumerate(given) if facts.get(fact) != first]
        if others:
            other = given[others[0]].get(fact, "")
            values = (
                "" if is_opaque(first) or is_opaque(other) else f" ('{other}' against '{first}')"
            )
            found.append(f"{name_ranks(others)} in {fact}{values}")
    return f"not the same on all ranks: {'; '.join(found)}, compared with rank 0" if found else ""


def is_opaque(value: str) -> bool:
    return value.startswith("#") or len(value) > SHOWN or "\n" in value or not value


def name_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


class StopVote:
    """Decides whether all ranks stop: each votes after a step, and all get the result a step later.

    The vote is a gloo all-reduce that runs while the next step computes, also if the ranks compute
    on GPUs, so that no step waits for it.
    """

    def __init__(self, num_ranks: int, timeout_seconds: float) -> None:
        limit = timedelta(seconds=timeout_seconds)
        self._group = dist.new_group(backend="gloo", timeout=limit) if num_ranks > 1 else None
        self._vote = torch.zeros(1, dtype=torch.int64)
        self._sent: dist.Work | None = None

    def vote(self, asked: str | None) -> str | None:
        """Vote, and return the last vote's result: the same on every rank after the same step."""
        if self._group is None:
            return asked
        result = self.result()
        self._vote = torch.tensor([signal.Signals[asked] if asked else 0])
        self._sent = dist.all_reduce(
            self._vote, dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return result

    def result(self) -> str | None:
        """The signal that the last vote decided on, if any."""
        if self._sent is not None:
            self._sent.wait()
        number = int(self._vote.item())
        return signal.Signals(number).name if number else None
