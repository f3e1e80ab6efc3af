"""Run folders by name: given one by one or found in a folder, read when they are looked at."""

import os
import threading
import time

import pytest

from stepladder.dashboard import run_list
from stepladder.dashboard.run_list import RunList
from stepladder.errors import RecordError
from stepladder.record import Journal, journal_path


def make(folder, steps=3):
    with Journal(folder) as journal:
        for step in range(steps):
            journal.write("step", step=step, loss=float(step))
    return folder


def test_a_run_and_a_folder_of_runs_are_told_apart(tmp_path):
    make(tmp_path / "runs" / "a"), make(tmp_path / "runs" / "b"), make(tmp_path / "other" / "a")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "file").write_text("")
    shown = RunList([tmp_path / "runs", tmp_path / "other" / "a"])
    assert shown.folders() == {
        "a": tmp_path / "runs" / "a",
        "b": tmp_path / "runs" / "b",
        "a (2)": tmp_path / "other" / "a",
    }


def test_a_folder_named_twice_is_one_run(tmp_path):
    make(tmp_path / "a")
    assert list(RunList([tmp_path / "a", tmp_path / "a", tmp_path]).folders()) == ["a"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing", "{} does not exist"),
        ("file", "{} is a file, not a folder"),
        ("foreign", "{} holds no run: no journal.jsonl in it or one folder below"),
    ],
)
def test_a_folder_without_a_run_is_named(tmp_path, name, problem):
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign" / "src").mkdir(parents=True)
    with pytest.raises(RecordError) as caught:
        RunList([tmp_path / name])
    assert str(caught.value) == (
        f"run folder: {problem.format(tmp_path / name)}. "
        "Name a folder that a run wrote, such as runs/first."
    )


def test_an_empty_folder_waits_for_its_first_run(tmp_path, monkeypatch):
    monkeypatch.setattr(run_list, "RESCAN_SECONDS", 0)
    shown = RunList([tmp_path])
    assert shown.folders() == {}
    make(tmp_path / "first")
    assert list(shown.folders()) == ["first"]


def test_the_state_of_a_run_that_nobody_opened_is_read_from_its_end(tmp_path):
    endings = {
        "live": [("step", {"step": 0})],
        "finished": [("summary", {"steps": 1})],
        "failed": [("end", {"failure": "RuntimeError: x"})],
        "again": [("end", {}), ("start", {"step": 1})],
    }
    for name, entries in endings.items():
        with Journal(make(tmp_path / name)) as journal:
            for kind, entry in entries:
                journal.write(kind, **entry)
    found = {name: run_list.state_from_journal_tail(tmp_path / name) for name in endings}
    assert found == {"live": "live", "finished": "finished", "failed": "failed", "again": "live"}
    old = time.time() - 100
    os.utime(journal_path(tmp_path / "live"), (old, old))
    assert run_list.state_from_journal_tail(tmp_path / "live") == "silent"
    assert run_list.state_from_journal_tail(tmp_path / "missing") == "silent"


def test_a_run_that_comes_later_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(run_list, "RESCAN_SECONDS", 0)
    make(tmp_path / "a")
    shown = RunList([tmp_path])
    make(tmp_path / "b")
    assert list(shown.folders()) == ["a", "b"]


def test_only_the_runs_last_looked_at_stay_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(run_list, "MAX_IN_MEMORY", 2)
    for name in "abc":
        make(tmp_path / name)
    shown = RunList([tmp_path])
    first = shown.open("a")
    shown.open("b")
    assert shown.open("a") is first
    shown.open("c")
    assert shown.if_open("b") is None and shown.if_open("a") is first
    assert shown.open("../a") is None and shown.open("") is None


def test_what_was_read_stays_when_the_folder_goes(tmp_path):
    make(tmp_path / "a")
    shown = RunList([tmp_path])
    index = shown.open("a")
    while shown.follow():
        pass
    journal_path(tmp_path / "a").unlink()
    assert shown.follow() is False and index.steps.last_step == 2


def test_runs_are_followed_until_it_is_stopped(tmp_path):
    make(tmp_path / "a")
    shown = RunList([tmp_path])
    index, stop = shown.open("a"), threading.Event()
    thread = threading.Thread(target=shown.follow_forever, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while index.steps.last_step != 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert index.steps.last_step == 2
    finally:
        stop.set()
        thread.join(120)
    assert not thread.is_alive()
