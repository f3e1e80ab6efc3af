"""Hang detection: which rank did not join a collective, and where it is instead.

A rank that waits for another learns only that it timed out. torch's flight recorder knows the
collective, because it numbers every collective of every group; where the missing rank is instead
only that rank can say. So a thread on each rank writes a heartbeat to the rendezvous store every
few seconds: a counter, how many collectives it called in each group, and the line its main thread
is at. That costs a step nothing. When a collective fails, `explain` reads the heartbeats and names
the first collective that a rank did not join.

NCCL does not raise in the thread that waits. There the watchdog thread itself ends the process with
the error, once a collective has been pending for longer than the time-out.
"""

from __future__ import annotations

import json
import math
import os
import sys
import sysconfig
import threading
import time
import traceback
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

from .background_thread import start_background_thread
from .different_calls import different_calls
from .flight_recorder import count_calls, last_call, read_counts, read_recorder
from .shared_failure import SharedFailure, is_connection_error

BEAT_SECONDS = 2.0
MISSED_BEATS = 2.5  # before a rank counts as gone,
MIN_WAIT_SECONDS = 2.0  # but no sooner than this, for busy machines
ANSWER_SECONDS = 5.0  # for the store to answer
OURS, STANDARD = str(Path(__file__).parents[2]), sysconfig.get_paths()["stdlib"]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a rank last published about itself."""

    beat: int = 0
    calls: Mapping[str, int] = field(default_factory=dict)  # collectives called, by group
    where: str = ""  # the line its main thread is at
    blames: int | None = None  # the rank it found missing itself


class HangWatchdog:
    """Publishes this rank's heartbeats, reads the others', and reports who is missing."""

    def __init__(self, place: Place, timeout_seconds: float) -> None:
        self.place, self.timeout_seconds = place, timeout_seconds
        self.period = min(BEAT_SECONDS, timeout_seconds / 4)
        # A weak reference, because a strong one would keep the group's threads and connections.
        self._group, self._backend = ref(dist.group.WORLD), dist.get_backend()
        # A second connection, because the main thread may be waiting on the first.
        self._store = dist.PrefixStore("stepladder/signs", default_store())
        with suppress(RuntimeError, AttributeError):  # not every store can be cloned
            self._store = self._store.clone()  # type: ignore[attr-defined]
        self.failure = SharedFailure(self._store, place.rank)
        self._beat = 0
        self._blames: int | None = None
        self._raised_at = ""  # the line that a collective failed in
        self._counts = read_counts(self._backend)
        self._left = self._counts  # an earlier world may have left some pending
        self._since = time.monotonic()
        self._publish_heartbeat()
        self._done = start_background_thread(self._run, "stepladder-watch")

    def close(self) -> None:
        self._done.set()

    @contextmanager
    def explain_hangs(self) -> Iterator[None]:
        """Turn a communication error into one that names the missing rank."""
        try:
            yield
        except StepladderError:
            raise
        except RuntimeError as error:
            if not is_connection_error(error):
                raise
            self._since = math.inf  # the main thread raised, so the watchdog need not end it
            raise self.explain(error) from error

    def explain(self, error: BaseException | str) -> LostRank:
        """The error that names the missing rank and the collective it did not join."""
        self._raised_at = raised_at(error) if isinstance(error, BaseException) else ""
        reason = str(error).strip().partition("\n")[0].rpartition("] ")[2]
        found: list[LostRank] = []
        # If the store's machine is lost, a request blocks until TCP gives up: ask in a thread.
        asking = threading.Thread(target=lambda: found.append(self._explain(reason)), daemon=True)
        asking.start()
        asking.join(ANSWER_SECONDS + MISSED_BEATS * self.period)
        if found:
            return found[0]
        return LostRank(
            "rank 0",
            f"its machine, which stores the ranks' heartbeats, does not answer ({reason})",
            "See that machine, and the network to it.",
        )

    def _explain(self, reason: str) -> LostRank:
        mine = self._publish_heartbeat().calls
        groups = groups_of_this_rank()
        members = {str(group.group_name): dist.get_process_group_ranks(group) for group in groups}
        beats, alive = self._poll_heartbeats()
        for rank in sorted(beats, key=lambda rank: (beats[rank].blames is not None, rank)):
            beat, shared = beats[rank], [g for g in mine if rank in members[g]]
            missed = [
                (g, beat.calls.get(g, 0) + 1) for g in shared if beat.calls.get(g, 0) < mine[g]
            ]
            if not alive[rank]:
                # It may have joined more collectives after its last heartbeat, but not the one
                # that this rank called last.
                missed = last_call(self._backend, shared)
            if missed or not alive[rank]:
                calls = [
                    f"{describe_call(self._backend, *call)} of ranks {members[call[0]]}"
                    for call in missed
                ]
                where = calls[0] if calls else f"'{reason}'"
                return self._blame(self._missing(rank, beat, alive[rank], where), rank)
        places = {
            self.place.rank: self._raised_at or main_thread_line(),
            **{r: b.where for r, b in beats.items()},
        }
        return different_calls(reason, places)

    def _blame(self, lost: LostRank, rank: int) -> LostRank:
        """Tell the other ranks which rank is missing, and that rank that it was given up."""
        self._blames = rank
        self._publish_heartbeat()
        with suppress(RuntimeError):
            self._store.set(f"blamed/{rank}", str(lost))
        return lost

    def end_others(self, reason: str) -> None:
        """Have all other ranks end, because this one will not join their collective."""
        for rank in range(self.place.num_ranks):
            if rank != self.place.rank:
                self._store.set(f"blamed/{rank}", reason)

    def _missing(self, rank: int, beat: Heartbeat, alive: bool, call: str) -> LostRank:
        if alive:
            return LostRank(
                f"rank {rank}",
                f"did not join {call} within {self.timeout_seconds:g} s; it is at {beat.where}",
                "See what it waits for there, or raise run.timeout_seconds.",
            )
        return LostRank(
            f"rank {rank}",
            f"gave no sign of life while others waited for it in {call}; "
            f"it was last at {beat.where or 'its start'}",
            "Its own log says how it ended; a rank without a word was often short of memory.",
        )

    def _poll_heartbeats(self) -> tuple[dict[int, Heartbeat], dict[int, bool]]:
        """The other ranks' heartbeats, and whether each advanced while this rank waited."""
        first = now = self._read_heartbeats()
        deadline = time.monotonic() + max(MISSED_BEATS * self.period, MIN_WAIT_SECONDS)
        alive = dict.fromkeys(now, False)
        while not all(alive.values()) and time.monotonic() < deadline:
            time.sleep(self.period / 4)
            now = self._read_heartbeats()
            alive = {rank: now[rank].beat > first[rank].beat for rank in now}
        return now, alive

    def _read_heartbeats(self) -> dict[int, Heartbeat]:
        """The other ranks' latest heartbeats; empty ones if the store is lost."""
        others = [rank for rank in range(self.place.num_ranks) if rank != self.place.rank]
        with suppress(RuntimeError):
            return {rank: self._read_heartbeat(str(rank)) for rank in others}
        return {rank: Heartbeat() for rank in others}

    def _read_heartbeat(self, key: str) -> Heartbeat:
        return (
            Heartbeat(**json.loads(self._store.get(key)))
            if self._store.check([key])
            else Heartbeat()
        )

    def _publish_heartbeat(self) -> Heartbeat:
        self._beat += 1
        line = self._raised_at or main_thread_line()
        beat = Heartbeat(self._beat, count_calls(), line, self._blames)
        with suppress(RuntimeError):
            self._store.set(str(self.place.rank), json.dumps(asdict(beat)))
        return beat

    def _run(self, done: threading.Event) -> None:
        while not done.wait(self.period) and self._world_is_open():
            self._publish_heartbeat()
            end = self._blamed() or self.failure.waits_in_vain()
            if self._collective_hangs():
                end = str(self.explain("a collective is pending"))
                if done.is_set() or not self._world_is_open() or not self._collective_hangs():
                    continue  # the collective ended meanwhile
            if end:
                sys.stderr.write(f"{end}\n")  # in one write, because ranks share stderr
                sys.stderr.flush()
                os._exit(1)  # the main thread is in a call that nothing can interrupt

    def _world_is_open(self) -> bool:
        """Whether the process group that this watches still exists."""
        return dist.group.WORLD is not None and dist.group.WORLD is self._group()

    def _blamed(self) -> str:
        """The error with which other ranks gave this rank up, if they did."""
        key = f"blamed/{self.place.rank}"
        with suppress(RuntimeError):
            return self._store.get(key).decode() if self._store.check([key]) else ""
        return ""

    def _collective_hangs(self) -> bool:
        """Whether a collective has been pending for longer than the time-out."""
        counts = read_counts(self._backend)
        pending = any(
            called > done and (called, done) != self._left.get(group)
            for group, (called, done) in counts.items()
        )
        if not pending or counts != self._counts:
            self._counts, self._since = counts, time.monotonic()
        return time.monotonic() - self._since > self.timeout_seconds + 2 * self.period


WATCHDOGS: WeakKeyDictionary[Any, HangWatchdog] = WeakKeyDictionary()  # one per process group


def watchdog_for(place: Place, timeout_seconds: float) -> HangWatchdog:
    """The watchdog of the default process group, shared by all worlds that use it."""
    group = dist.group.WORLD
    if group not in WATCHDOGS:
        WATCHDOGS[group] = HangWatchdog(place, timeout_seconds)
    return WATCHDOGS[group]


def describe_call(backend: str, group: str, number: int) -> str:
    """Describe a collective of a group by its name, its number and the line that called it."""
    for entry in reversed(read_recorder(backend, calls=True).get("entries", [])):
        if entry["process_group"][0] == group and entry["collective_seq_id"] == number:
            name = entry["profiling_name"].rpartition(":")[2]
            frames = [(f["filename"], f["line"]) for f in entry.get("frames", [])]
            line = next((f"{Path(f).name}:{n}" for f, n in frames if not is_library(f)), "backward")
            return f"{name} number {number} (called at {line})"
    return f"collective number {number}"


def main_thread_line() -> str:
    """The file and line that the main thread is at, skipping torch and the standard library."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    inner, seen = frame, frame
    while seen is not None and (is_library(seen.f_code.co_filename) or is_watchdog(seen)):
        seen = seen.f_back
    found: FrameType | None = seen or inner
    if found is None:
        return ""
    return f"{Path(found.f_code.co_filename).name}:{found.f_lineno} in {found.f_code.co_name}"


def raised_at(error: BaseException) -> str:
    """The innermost line of a user's that an error passed, else of ours."""
    lines = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    known = [(code, line) for code, line in lines if not is_library(code.co_filename)]
    theirs = [(code, line) for code, line in known if not code.co_filename.startswith(OURS)]
    for code, line in (theirs or known)[-1:]:
        return f"{Path(code.co_filename).name}:{line} in {code.co_name}"
    return ""


def is_watchdog(frame: FrameType) -> bool:
    """Whether the frame is in this file, which the main thread runs when it starts a watchdog."""
    return frame.f_code.co_filename == __file__


def is_library(filename: str) -> bool:
    if filename.startswith(OURS):
        return False
    return filename.startswith(("<", STANDARD)) or "site-packages" in filename
