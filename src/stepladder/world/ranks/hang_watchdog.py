"""Whether the other ranks are still there: who did not come to a collective, and where it is.

A rank that waits for another learns only that it waited too long. What it was waiting in, torch's
flight recorder knows: it numbers every collective of every group. Where the other one is instead
only the other can say. So a thread in each rank leaves, every few seconds, in the store where the
ranks met: a count of its beats, how many collectives it called in each group, and the line its
main thread is at. That costs a step nothing. When a collective fails, `explain` reads what the
others left, and names the first collective that one of them did not join.

NCCL does not raise in the thread that waits. There the watching thread itself ends the process
with the sentence, once a collective has been pending for longer than the time-out.
"""

from __future__ import annotations

import json
import math
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist

from stepladder.errors import LostRank, StepladderError
from stepladder.seam.process_groups import default_store, groups_of_this_rank
from stepladder.world.launcher_environment import Place

from .background_thread import beside
from .flight_recorder import count_calls, last_call, read_counts, read_recorder

BEAT_SECONDS = 2.0
PATIENCE = 2.5  # beats without a sign before a rank counts as gone,
ANSWER_SECONDS = 5.0  # for the store to answer
LEAST_SECONDS = 2.0  # which on a busy machine is no less than this
OURS, STANDARD = str(Path(__file__).parents[2]), sysconfig.get_paths()["stdlib"]
# What gloo, NCCL and the store say when somebody is missing; anything else is not about ranks.
LOST = (
    "gloo", "NCCL", "Timed out", "wait timeout",
    "Connection", "pair closure", "Broken pipe", "Socket",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sign:
    """What a rank last left of itself."""

    beat: int = 0
    calls: Mapping[str, int] = field(default_factory=dict)  # collectives called, by group
    where: str = ""  # the line its main thread is at
    blames: int | None = None  # the rank it found missing itself


class Watch:
    """Leaves signs of this rank and reads those of the others."""

    def __init__(self, place: Place, timeout_seconds: float) -> None:
        self.place, self.timeout_seconds = place, timeout_seconds
        self.period = min(BEAT_SECONDS, timeout_seconds / 4)
        # Held weakly: who holds a group keeps its threads and its connections.
        self._group, self._backend = ref(dist.group.WORLD), dist.get_backend()
        # A connection of its own: the main thread may be waiting on the other.
        self._store = dist.PrefixStore("stepladder/signs", default_store())
        with suppress(RuntimeError, AttributeError):  # not every store can be had twice
            self._store = self._store.clone()  # type: ignore[attr-defined]
        self._beat = 0
        self._blames: int | None = None
        self._counts = read_counts(self._backend)
        self._left = self._counts  # an earlier world may have left some pending
        self._since = time.monotonic()
        self._leave_sign()
        self._done = beside(self._run, "stepladder-watch")

    def close(self) -> None:
        self._done.set()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Turn an error of communication into one that names the missing rank."""
        try:
            yield
        except StepladderError:
            raise
        except RuntimeError as error:
            if not any(word in str(error) for word in LOST):
                raise
            self._since = math.inf  # the main thread came out of it: nobody needs to end it
            raise self.explain(error) from error

    def explain(self, error: BaseException | str) -> LostRank:
        """Who is missing, and from what."""
        said = str(error).strip().partition("\n")[0].rpartition("] ")[2]
        found: list[LostRank] = []
        # The store goes with its machine, and then answers nobody for as long as TCP hopes.
        asking = threading.Thread(target=lambda: found.append(self._explain(said)), daemon=True)
        asking.start()
        asking.join(ANSWER_SECONDS + PATIENCE * self.period)
        if found:
            return found[0]
        return LostRank(
            "rank 0",
            f"its machine does not answer, where ranks leave word of themselves ({said})",
            "See that machine, and the network to it.",
        )

    def _explain(self, said: str) -> LostRank:
        mine = self._leave_sign().calls
        groups = groups_of_this_rank()
        members = {str(group.group_name): dist.get_process_group_ranks(group) for group in groups}
        signs, alive = self._look_around()
        for rank in sorted(signs, key=lambda rank: (signs[rank].blames is not None, rank)):
            sign, shared = signs[rank], [g for g in mine if rank in members[g]]
            missed = [
                (g, sign.calls.get(g, 0) + 1) for g in shared if sign.calls.get(g, 0) < mine[g]
            ]
            if not alive[rank]:
                # What it last left is older than its end: it may have joined many since. What we
                # called last, it did not.
                missed = last_call(self._backend, shared)
            if missed or not alive[rank]:
                calls = [
                    f"{describe_call(self._backend, *call)} of ranks {members[call[0]]}"
                    for call in missed
                ]
                where = calls[0] if calls else f"'{said}'"
                return self._blame(self._missing(rank, sign, alive[rank], where), rank)
        return LostRank(
            "world",
            f"{said}, while every rank is alive and called the same collectives",
            "See the network between the machines, or raise run.timeout_seconds.",
        )

    def _blame(self, lost: LostRank, rank: int) -> LostRank:
        """Let others know whom we miss, and the one we miss that nobody waits for it any more."""
        self._blames = rank
        self._leave_sign()
        with suppress(RuntimeError):
            self._store.set(f"blamed/{rank}", str(lost))
        return lost

    def end_others(self, said: str) -> None:
        """Have all others end: nobody will come to what they wait in."""
        for rank in range(self.place.num_ranks):
            if rank != self.place.rank:
                self._store.set(f"blamed/{rank}", said)

    def _missing(self, rank: int, sign: Sign, alive: bool, call: str) -> LostRank:
        if alive:
            return LostRank(
                f"rank {rank}",
                f"did not join {call} within {self.timeout_seconds:g} s; it is at {sign.where}",
                "See what it waits for there, or raise run.timeout_seconds.",
            )
        return LostRank(
            f"rank {rank}",
            f"gave no sign of life while others waited for it in {call}; "
            f"it was last at {sign.where or 'its start'}",
            "Its own log says how it ended; a rank without a word was often short of memory.",
        )

    def _look_around(self) -> tuple[dict[int, Sign], dict[int, bool]]:
        """The others' latest signs, and whether they came while we looked."""
        first = now = self._signs()
        deadline = time.monotonic() + max(PATIENCE * self.period, LEAST_SECONDS)
        alive = dict.fromkeys(now, False)
        while not all(alive.values()) and time.monotonic() < deadline:
            time.sleep(self.period / 4)
            now = self._signs()
            alive = {rank: now[rank].beat > first[rank].beat for rank in now}
        return now, alive

    def _signs(self) -> dict[int, Sign]:
        """A sign of each other rank; empty ones where the store went with the rank that kept it."""
        others = [rank for rank in range(self.place.num_ranks) if rank != self.place.rank]
        with suppress(RuntimeError):
            return {rank: self._sign_of(str(rank)) for rank in others}
        return {rank: Sign() for rank in others}

    def _sign_of(self, key: str) -> Sign:
        return Sign(**json.loads(self._store.get(key))) if self._store.check([key]) else Sign()

    def _leave_sign(self) -> Sign:
        self._beat += 1
        sign = Sign(self._beat, count_calls(), main_thread_line(), self._blames)
        with suppress(RuntimeError):
            self._store.set(str(self.place.rank), json.dumps(asdict(sign)))
        return sign

    def _run(self, done: threading.Event) -> None:
        while not done.wait(self.period) and self._watches():
            self._leave_sign()
            end = self._blamed()
            if self._stalls():
                end = str(self.explain("a collective is pending"))
                if done.is_set() or not self._watches() or not self._stalls():
                    continue  # the main thread came out of it meanwhile
            if end:
                sys.stderr.write(f"{end}\n")  # at once: ranks share it
                sys.stderr.flush()
                os._exit(1)  # the main thread is in a call that nothing can interrupt

    def _watches(self) -> bool:
        """Whether the world this watched is still open."""
        return dist.group.WORLD is not None and dist.group.WORLD is self._group()

    def _blamed(self) -> str:
        """What those that gave us up said of us."""
        key = f"blamed/{self.place.rank}"
        with suppress(RuntimeError):
            return self._store.get(key).decode() if self._store.check([key]) else ""
        return ""

    def _stalls(self) -> bool:
        """Whether a collective has been pending for longer than a backend would let it."""
        counts = read_counts(self._backend)
        pending = any(
            called > done and (called, done) != self._left.get(group)
            for group, (called, done) in counts.items()
        )
        if not pending or counts != self._counts:
            self._counts, self._since = counts, time.monotonic()
        return time.monotonic() - self._since > self.timeout_seconds + 2 * self.period


WATCHES: WeakKeyDictionary[Any, Watch] = WeakKeyDictionary()  # one a process group


def watch_ranks(place: Place, timeout_seconds: float) -> Watch:
    """The watch over the ranks that met; one for all worlds made of them."""
    group = dist.group.WORLD
    if group not in WATCHES:
        WATCHES[group] = Watch(place, timeout_seconds)
    return WATCHES[group]


def describe_call(backend: str, group: str, number: int) -> str:
    """Name a collective of a group by its number, and the line that called it."""
    for entry in reversed(read_recorder(backend, calls=True).get("entries", [])):
        if entry["process_group"][0] == group and entry["collective_seq_id"] == number:
            name = entry["profiling_name"].rpartition(":")[2]
            frames = [(f["filename"], f["line"]) for f in entry.get("frames", [])]
            line = next((f"{Path(f).name}:{n}" for f, n in frames if not foreign(f)), "backward")
            return f"{name} number {number} (called at {line})"
    return f"collective number {number}"


def main_thread_line() -> str:
    """File and line the main thread is at, in code that is neither torch's nor Python's own."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    inner, seen = frame, frame
    while seen is not None and (foreign(seen.f_code.co_filename) or looks(seen)):
        seen = seen.f_back
    found: FrameType | None = seen or inner
    if found is None:
        return ""
    return f"{Path(found.f_code.co_filename).name}:{found.f_lineno} in {found.f_code.co_name}"


def looks(frame: FrameType) -> bool:
    """Whether this is the watch itself, which the main thread starts."""
    return frame.f_code.co_filename == __file__


def foreign(filename: str) -> bool:
    if filename.startswith(OURS):
        return False
    return filename.startswith(("<", STANDARD)) or "site-packages" in filename
