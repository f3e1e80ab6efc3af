"""What a learner's run did is drawn: who told whom, when, and the memory held."""

from stepladder.cli.learning.own_run_plots import draw_own_run
from stepladder.labs.catalogue.courses import find_lab
from stepladder.labs.grading.own_run import OwnRun


def event(at, held=1024, backward=False, **said):
    return {"at": at, "held": held, "backward": backward, **said}


def test_ranks_messages_time_and_memory_are_drawn(tmp_path):
    act = {
        0: [event(0.0), event(0.1, kind="send", peer=1, bytes=64, ways=2), event(0.3, 2048)],
        1: [event(0.0), event(0.2, kind="recv", peer=0, bytes=64, ways=2), event(0.4, 9, True)],
    }
    path = draw_own_run(find_lab("ring"), OwnRun([], [act]), tmp_path / "own.png")
    alone = {0: [event(0.0), event(0.1, 4096, True)]}
    other = draw_own_run(find_lab("memory"), OwnRun([], [alone]), tmp_path / "alone.png")
    assert path.stat().st_size > other.stat().st_size > 10_000


def test_a_run_that_did_nothing_worth_drawing_has_a_picture_all_the_same(tmp_path):
    assert draw_own_run(find_lab("flops"), OwnRun(), tmp_path / "own.png").is_file()
