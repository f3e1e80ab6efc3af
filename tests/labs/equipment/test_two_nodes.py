"""A node of two ranks is really killed, and what its run did is noted from outside."""

from pathlib import Path

import pytest

from stepladder.errors import WorldError
from stepladder.labs.equipment.two_nodes import first_error, run_on_two_nodes
from stepladder.labs.lessons.capstones import node_failure
from stepladder.labs.lessons.capstones.node_failure import train


@pytest.mark.soak
def test_a_run_that_loses_a_node_ends_as_if_nothing_had_happened(monkeypatch):
    monkeypatch.setattr(node_failure, "STEPS", 9)
    monkeypatch.setattr(node_failure, "EVERY", 3)
    undisturbed, disturbed = run_on_two_nodes(train), run_on_two_nodes(train, lost_after=5)
    assert undisturbed.updates == [9]
    assert disturbed.updates == [5, 6], "from the save after step 3 on"
    assert undisturbed.saved_after() == [3, 6], "the last save follows the last update"
    assert len(undisturbed.files) == len(disturbed.files) == 3
    assert undisturbed.error is disturbed.error is None
    assert len(set(undisturbed.final)) == 1
    assert disturbed.final == undisturbed.final
    for at, note in enumerate(disturbed.starts[1][2]):
        same = undisturbed.starts[0][2][3 + at]
        names = ("parameters", "optimizer", "data", "dropout")
        assert [getattr(note, name) for name in names] == [getattr(same, name) for name in names]


def fail(folder: Path):
    raise ValueError(f"no data in {folder.name}")


def test_what_a_rank_raises_comes_home_with_its_line():
    run = run_on_two_nodes(fail)
    assert isinstance(run.error, WorldError)
    assert "failed with ValueError: no data in saves" in str(run.error)
    assert "Try one start without a failure first" in str(run.error)
    frames = run.error.frames  # type: ignore[attr-defined]
    assert frames[-1].filename == __file__ and "raise ValueError" in frames[-1].line
    assert run.final == []


def test_a_rank_that_leaves_no_word_is_told_apart():
    assert "a rank ended without a word" in str(first_error([]))
