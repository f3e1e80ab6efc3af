"""A learner's run is recorded from outside: what its ranks said, held and measured."""

import pytest

from stepladder.labs import solution
from stepladder.labs.catalogue.courses import find_lab
from stepladder.labs.grading.own_run import OwnRun, run_own


def run(name, folder, change=("", "")):
    lab = find_lab(name)
    path = folder / "mine.py"
    path.write_text(solution(lab.lesson.read_text()).replace(*change))
    return run_own(lab, path, limit_seconds=60)


def test_messages_between_ranks_are_recorded_by_rank(tmp_path):
    own = run("ring", tmp_path, ("num_ranks: int = 4", "num_ranks: int = 2"))
    act = own.main_act()
    assert len(own.rows) == 3 * 2 * 2 and list(act) == [0, 1]
    for rank, events in act.items():
        said = [(one["kind"], one["peer"]) for one in events if "kind" in one]
        assert sorted(said) == [("recv", 1 - rank)] * 2 + [("send", 1 - rank)] * 2
        assert all(one["held"] >= 32 for one in events)


@pytest.mark.soak
def test_one_process_is_recorded_with_its_memory(tmp_path):
    own = run("memory-dashboard", tmp_path)
    (act,) = own.acts
    held = [one["held"] for one in act[0]]
    assert max(held) > 10 * held[0] and any(one["backward"] for one in act[0])
    assert not any("kind" in one for one in act[0])


def test_a_run_that_fails_says_why(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def measure():\n    raise ValueError('no')\n")
    own = run_own(find_lab("views"), path, limit_seconds=60)
    assert own == OwnRun(problem="ValueError: no") and own.main_act() == {}
