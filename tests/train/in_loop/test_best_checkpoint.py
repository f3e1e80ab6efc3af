"""A run is saved when a value is among the best, and what no longer is goes."""

import math
from pathlib import Path

import pytest
import torch

from stepladder.errors import PlanError, TrainingError
from stepladder.train import BestCheckpoint, climb
from tests.ranks import run as run_on_ranks
from tests.train.toys import net, pairs

BATCH = pairs(1)[0]


def start():
    return climb(net(), loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32", device="cpu")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


def follow(run, best, values) -> list[str | None]:
    """One step for each value; what was saved."""
    saved = []
    for value in values:
        run.step(BATCH)
        path = best(value)
        saved.append(path and path.name)
    run.finish_saving()
    return saved


@pytest.mark.parametrize("wait", [True, False])
def test_a_better_value_is_saved_and_replaces_the_worse(tmp_path, wait):
    run = start()
    best = BestCheckpoint(run, tmp_path, wait=wait)
    assert (best.path, best.value) == (None, None)
    values = (0.5, 0.6, 0.4, 0.4, math.nan, 0.3)
    assert follow(run, best, values) == ["step-000001", None, "step-000003", None, None,
                                         "step-000006"]  # fmt: skip
    assert names(tmp_path) == ["step-000006"]
    assert (best.path, best.value) == (tmp_path / "step-000006", 0.3)


def test_so_many_of_the_highest_are_kept(tmp_path):
    run = start()
    best = BestCheckpoint(run, tmp_path, mode="max", keep=3)
    saved = follow(run, best, (0.5, 0.1, 0.9, 0.2, 0.05, 0.7))
    assert [bool(name) for name in saved] == [True, True, True, True, False, True]
    assert names(tmp_path) == ["step-000001", "step-000003", "step-000006"]
    assert best.value == 0.9


def test_a_step_is_in_a_folder_once(tmp_path):
    run = start()
    best = BestCheckpoint(run, tmp_path)
    best(0.5)
    with pytest.raises(TrainingError, match="step-000000 is kept as one of the best, and has the"):
        run.save(tmp_path)
    assert best.value == 0.5
    run.step(BATCH)
    run.save(tmp_path)
    with pytest.raises(TrainingError, match="step-000001 is a checkpoint of run.save, of the same"):
        best(0.4)
    assert best(0.6) is None and best.value == 0.5


def test_what_is_no_run_or_no_value_is_refused(tmp_path):
    with pytest.raises(PlanError, match="best checkpoint: was given a Net, and saves a run"):
        BestCheckpoint(net(), tmp_path)
    with pytest.raises(PlanError, match="value: a list is not one number to compare"):
        BestCheckpoint(start(), tmp_path)([1.0])


def test_what_the_run_saves_into_the_same_folder_is_left_alone(tmp_path):
    run = start()
    best = BestCheckpoint(run, tmp_path)
    follow(run, best, (0.5,))
    for _ in range(3):
        run.step(BATCH)
        run.save(tmp_path, wait=False)
    run.finish_saving()
    assert names(tmp_path) == ["step-000001", "step-000003", "step-000004"]
    follow(run, best, (0.4,))
    assert names(tmp_path) == ["step-000003", "step-000004", "step-000005"]
    follow(run, best, (0.3,))
    assert names(tmp_path) == ["step-000003", "step-000004", "step-000006"]


def test_a_resumed_run_knows_the_best_so_far(tmp_path):
    run = start()
    run.save(tmp_path / "run")
    follow(run, BestCheckpoint(run, tmp_path / "best", keep=2), (0.5, 0.3))

    resumed = start()
    resumed.resume(tmp_path / "run")
    best = BestCheckpoint(resumed, tmp_path / "best", keep=2)
    assert best.value == 0.3
    # Better than the worse of the two, but not than what is there of the same step.
    assert follow(resumed, best, (0.6, 0.4)) == [None, None]
    resumed.load(best.path)
    assert resumed.index == 2


def test_the_best_of_an_earlier_run_are_not_taken_for_this_run_s(tmp_path):
    follow(start(), BestCheckpoint(start(), tmp_path), (0.1,))
    run = start()
    run.step(BATCH)
    with pytest.raises(TrainingError, match="holds the best of an earlier run, and this one began"):
        BestCheckpoint(run, tmp_path)(0.5)
    assert names(tmp_path), "nothing is deleted"
    BestCheckpoint(run, tmp_path / "other")(0.5)
    BestCheckpoint(run, tmp_path / "other")(0.4)  # another object, the same run


def test_a_save_that_failed_is_not_among_the_best(tmp_path):
    run = start()
    best = BestCheckpoint(run, tmp_path / "best", wait=False)
    (tmp_path / "best").write_text("in the way")
    run.step(BATCH)
    best(0.5)
    run.saver.thread.join()
    (tmp_path / "best").unlink()
    run.step(BATCH)
    assert best(0.6) is not None
    run.finish_saving()
    assert best.value == 0.6
    assert [event for event in run.events if event.startswith("save failed: ")]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"keep": 0}, "keep: 0 is not a number of checkpoints to keep. Use 1 or more."),
        ({"mode": "lowest"}, "mode: 'lowest' does not say which values are better. Choose one of"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, how, said):
    with pytest.raises(PlanError) as refused:
        BestCheckpoint(start(), tmp_path, **how)
    assert str(refused.value).startswith(said)


def disagree(folder: str) -> list[str]:
    run = climb(net(), loss="cross_entropy", plan="fp32 ddp", device="cpu")
    best, rank = BestCheckpoint(run, folder), run.world.place.rank
    said = []
    for value in (0.5 + rank, math.nan if rank else 0.0):
        with pytest.raises(TrainingError) as refused:
            best(value)
        said.append(str(refused.value))
    saved = best(torch.tensor(0.5))
    assert saved is not None and best(math.nan) is None
    run.world.close()
    return said


def test_ranks_with_different_values_are_told(tmp_path):
    first, second = run_on_ranks(disagree, 2, str(tmp_path), init=False)
    assert first[0].startswith("value: rank 0 was given 0.5 and other ranks another value. Give")
    assert second[0].startswith("value: rank 1 was given 1.5 and other ranks another value.")
    assert second[1].startswith("value: rank 1 was given nan and other ranks another value.")
    assert names(tmp_path) == ["step-000000"]
