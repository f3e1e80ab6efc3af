"""A tracker may fail, hang or be slow: the journal has every entry and the run never waits."""

import threading

import pytest

from stepladder.record import Journal, read_journal
from stepladder.track import TrackedJournal, open_journal
from stepladder.track import tracked_journal as tracking


class Tracker:
    name = "tracker"

    def __init__(self, write=None, close=None):
        self.seen, self._write, self._close = [], write, close

    def write(self, kind, entry):
        if self._write:
            self._write(entry)
        self.seen.append((kind, entry))

    def close(self):
        if self._close:
            self._close()


def fill(folder, tracker, steps=10):
    with TrackedJournal(Journal(folder), [tracker]) as journal:
        for step in range(steps):
            journal.write("step", step=step, loss=1.0)
    entries = list(read_journal(folder))
    assert [e["step"] for e in entries if e["kind"] == "step"] == list(range(steps))
    return [e["text"] for e in entries if e["kind"] == "event"]


def test_entries_reach_the_journal_and_the_tracker(tmp_path):
    tracker = Tracker()
    assert fill(tmp_path, tracker) == []
    assert [entry["step"] for _, entry in tracker.seen] == list(range(10))


def test_a_journal_without_trackers_is_a_journal(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.write("step", step=0)
    assert [entry["step"] for entry in read_journal(tmp_path)] == [0]


def test_a_tracker_that_fails_is_told_and_then_left_out(tmp_path):
    def refuse(entry):
        raise ConnectionError(f"no route at {entry['step']}\nand more")

    tracker = Tracker(refuse)
    assert fill(tmp_path, tracker) == [
        "tracker failed: no route at 0",
        "tracker failed 5 times in a row: left out from now on",
    ]


def test_a_tracker_that_fails_now_and_then_stays(tmp_path):
    def refuse_odd(entry):
        if entry["step"] % 2:
            raise ValueError

    tracker = Tracker(refuse_odd)
    assert {*fill(tmp_path, tracker)} == {"tracker failed: ValueError"}
    assert [entry["step"] for _, entry in tracker.seen] == [0, 2, 4, 6, 8]


def test_a_tracker_that_hangs_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "MAX_QUEUED", 3)
    monkeypatch.setattr(tracking, "CLOSING_SECONDS", 0.2)
    forever = threading.Event()
    tracker = Tracker(lambda entry: forever.wait(600))  # longer than a test may take
    try:
        said = fill(tmp_path, tracker)
    finally:
        forever.set()
    assert said[0] == "trackers are slower than the run: entries are left out for them"
    assert said[-1] == "trackers did not take the last entries in 0 s"


def test_a_tracker_that_fails_at_the_end_is_told(tmp_path):
    def refuse():
        raise OSError("disk full")

    assert fill(tmp_path, Tracker(close=refuse)) == [
        "tracker failed while it was closed: disk full"
    ]


def test_the_folder_can_be_opened_again_after_closing(tmp_path):
    for _ in range(2):
        with (
            open_journal(tmp_path, "prometheus:0") as journal,
            pytest.raises(Exception, match="another run"),
        ):
            Journal(tmp_path)
        assert journal.path.exists()
