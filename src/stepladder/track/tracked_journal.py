"""A journal that also sends its entries to trackers, without waiting for them.

Writing to the journal comes first and is the only part a run waits for. A separate thread sends the
entries to the trackers; if they are slower than the run, or down, entries are dropped and the
journal records that. A tracker can never stop a run.
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

MAX_QUEUED = 10_000  # entries that wait for the trackers
MAX_FAILURES = 5  # in a row, after which a tracker is removed
CLOSING_SECONDS = 30.0  # for the entries that still wait at the end


class Tracker(Protocol):
    """A tracker that entries are sent to."""

    name: str

    def write(self, kind: str, entry: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def open_journal(
    folder: str | Path, track: str | Iterable[str] | Iterable[Target] = ()
) -> TrackedJournal:
    """Open the journal of a run folder, with its entries also sent to these trackers.

    `track` is, for example, "tensorboard, prometheus:9400". Write an entry with
    `journal.write("step", **report.to_dict())`.
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
    """Writes entries to the journal at once, and to the trackers in the background."""

    def __init__(self, journal: Journal, trackers: Iterable[Tracker] = ()) -> None:
        self.journal, self.trackers = journal, list(trackers)
        self.path = journal.path
        self._failures = {tracker.name: 0 for tracker in self.trackers}
        self._queue: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(MAX_QUEUED)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._forward, name="trackers", daemon=True)
        if self.trackers:
            self._thread.start()

    @property
    def addresses(self) -> list[str]:
        """The URLs that trackers serve on, with the actual port where 0 was asked for."""
        return [one.address for one in self.trackers if isinstance(one, Prometheus)]

    def write(self, kind: str, **entry: Any) -> None:
        self.journal.write(kind, **entry)
        if not self.trackers:
            return
        try:
            self._queue.put_nowait((kind, entry))
        except queue.Full:
            if not self._num_dropped:
                self._log_event("trackers are slower than the run: entries are left out for them")
            self._num_dropped += 1

    def _forward(self) -> None:
        while (item := self._queue.get()) is not None:
            for tracker in list(self.trackers):
                self._send(tracker, *item)

    def _send(self, tracker: Tracker, kind: str, entry: dict[str, Any]) -> None:
        try:
            tracker.write(kind, entry)
        except Exception as failed:  # whatever it is, the run goes on
            self._failures[tracker.name] += 1
            if self._failures[tracker.name] == 1:
                self._log_event(f"{tracker.name} failed: {first_line(failed)}")
            if self._failures[tracker.name] == MAX_FAILURES:
                self.trackers.remove(tracker)
                self._log_event(
                    f"{tracker.name} failed {MAX_FAILURES} times in a row: left out from now on"
                )
        else:
            self._failures[tracker.name] = 0

    def _log_event(self, text: str) -> None:
        self.journal.write("event", text=text)

    def close(self) -> None:
        """Send the entries that still wait, within a time limit."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSING_SECONDS)
                self._thread.join(CLOSING_SECONDS)
            except queue.Full:
                pass
            if self._thread.is_alive():
                self._log_event(
                    f"trackers did not take the last entries in {CLOSING_SECONDS:.0f} s"
                )
            else:
                self._close_trackers()
        self.journal.close()

    def _close_trackers(self) -> None:
        for tracker in self.trackers:
            try:
                tracker.close()
            except Exception as failed:
                self._log_event(f"{tracker.name} failed while it was closed: {first_line(failed)}")

    def __enter__(self) -> TrackedJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def first_line(failed: Exception) -> str:
    return (str(failed).strip() or type(failed).__name__).splitlines()[0][:300]
