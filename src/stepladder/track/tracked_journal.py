"""A journal that also hands its entries on, without ever waiting for whom it hands them to.

Writing to the journal comes first and is the only part a run waits for. A thread of its own tells
the trackers; where they are slower than the run, or down, entries are left out and the journal
says so. Nothing a tracker does can stop a run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from stepladder.record import Journal

from .mlflow import Mlflow
from .prometheus import Prometheus
from .targets import Target, parse_targets
from .tensorboard import TensorBoard
from .wandb import Wandb

WAITING = 10_000  # entries that may wait for the trackers
FAILURES = 5  # in a row, and a tracker is left out
CLOSING_SECONDS = 30.0  # for what still waits at the end


class Tracker(Protocol):
    """One place to which entries go."""

    name: str

    def write(self, kind: str, entry: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def open_journal(
    folder: str | Path, track: str | Iterable[str] | Iterable[Target] = ()
) -> TrackedJournal:
    """The journal of a run folder, its entries also told to these trackers.

    `track` is such as "tensorboard, prometheus:9400". Each entry is one `write(kind, **numbers)`,
    as in `journal.write("step", **report.to_dict())`.
    """
    given = [track] if isinstance(track, str) else list(track)
    words = [one for one in given if isinstance(one, str)]
    targets = [one for one in given if isinstance(one, Target)]
    targets += parse_targets(",".join(words))
    journal = Journal(folder)
    trackers: list[Tracker] = []
    try:
        for target in targets:
            trackers.append(open_tracker(target, Path(folder)))
    except BaseException:
        for tracker in trackers:
            tracker.close()
        journal.close()
        raise
    return TrackedJournal(journal, trackers)


def open_tracker(target: Target, folder: Path) -> Tracker:
    if target.name == "prometheus":
        return Prometheus(folder.resolve().name, target.host, target.port)
    return OPENERS[target.name](folder)


OPENERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
}


class TrackedJournal:
    """Writes to the journal now and to the trackers as soon as they are ready."""

    def __init__(self, journal: Journal, trackers: Iterable[Tracker] = ()) -> None:
        self.journal, self.trackers = journal, list(trackers)
        self.path = journal.path
        self._failures = {tracker.name: 0 for tracker in self.trackers}
        self._waiting: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(WAITING)
        self._left_out = 0
        self._thread = threading.Thread(target=self._hand_on, name="trackers", daemon=True)
        if self.trackers:
            self._thread.start()

    @property
    def addresses(self) -> list[str]:
        """Where trackers answer; a port of 0 has become the one that was free."""
        return [one.address for one in self.trackers if isinstance(one, Prometheus)]

    def write(self, kind: str, **entry: Any) -> None:
        self.journal.write(kind, **entry)
        if not self.trackers:
            return
        try:
            self._waiting.put_nowait((kind, entry))
        except queue.Full:
            if not self._left_out:
                self._say("trackers are slower than the run: entries are left out for them")
            self._left_out += 1

    def _hand_on(self) -> None:
        while (item := self._waiting.get()) is not None:
            for tracker in list(self.trackers):
                self._tell(tracker, *item)

    def _tell(self, tracker: Tracker, kind: str, entry: dict[str, Any]) -> None:
        try:
            tracker.write(kind, entry)
        except Exception as failed:  # whatever it is, the run goes on
            self._failures[tracker.name] += 1
            if self._failures[tracker.name] == 1:
                self._say(f"{tracker.name} failed: {first_line(failed)}")
            if self._failures[tracker.name] == FAILURES:
                self.trackers.remove(tracker)
                self._say(f"{tracker.name} failed {FAILURES} times in a row: left out from now on")
        else:
            self._failures[tracker.name] = 0

    def _say(self, text: str) -> None:
        self.journal.write("event", text=text)

    def close(self) -> None:
        """Hand on what still waits, but not for ever."""
        if self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=CLOSING_SECONDS)
                self._thread.join(CLOSING_SECONDS)
            except queue.Full:
                pass
            if self._thread.is_alive():
                self._say(f"trackers did not take the last entries in {CLOSING_SECONDS:.0f} s")
            else:
                self._close_trackers()
        self.journal.close()

    def _close_trackers(self) -> None:
        for tracker in self.trackers:
            try:
                tracker.close()
            except Exception as failed:
                self._say(f"{tracker.name} failed while it was closed: {first_line(failed)}")

    def __enter__(self) -> TrackedJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def first_line(failed: Exception) -> str:
    return (str(failed).strip() or type(failed).__name__).splitlines()[0][:300]
