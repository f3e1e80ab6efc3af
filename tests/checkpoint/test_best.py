"""Checkpoints that are kept for their values; a manifest that says nonsense of it is none."""

import shutil
from pathlib import Path

import pytest

from stepladder.checkpoint.best import Ranking, list_best, read_ranking
from stepladder.checkpoint.commit import checkpoint_folder, commit
from stepladder.checkpoint.manifest import RankFiles, merge

STATE = {"step": 5, "position": 40, "seed": 0, "loss_scale": {}}


def write(root: Path, step: int, best: object = None) -> Path:
    """A checkpoint of no tensors."""
    (root / ".partial").mkdir(parents=True)
    final = checkpoint_folder(root, step)
    extra = best.to_state() if isinstance(best, Ranking) else {"best": best} if best else {}
    commit(root / ".partial", final, merge([RankFiles()], {**STATE, "step": step, **extra}, 1))
    return final


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("step-*"))


def test_the_lowest_and_the_highest_are_kept_apart_and_apart_from_the_newest(tmp_path):
    for step, value in enumerate((3.0, 2.0, 1.0)):
        write(tmp_path, step, Ranking(value, "min", 1))
    for step, value in enumerate((3.0, 1.0, 5.0), 3):
        write(tmp_path, step, Ranking(value, "max", 2))
    for step in (6, 7, 8):
        write(tmp_path, step)
    kept = ["step-000002", "step-000003", "step-000005", "step-000007", "step-000008"]
    assert names(tmp_path) == kept
    assert [path.name for path, _ in list_best(tmp_path, "max")] == ["step-000005", "step-000003"]


def test_one_that_was_committed_for_no_better_value_is_not_deleted_at_once(tmp_path):
    write(tmp_path, 1, Ranking(1.0, "min", 1))
    newest = write(tmp_path, 2, Ranking(2.0, "min", 1))
    assert newest.exists() and names(tmp_path) == ["step-000001", "step-000002"]


@pytest.mark.parametrize(
    "best",
    [
        {"value": "low", "mode": "min", "keep": 1},
        {"value": 1.0, "mode": "sideways", "keep": 1},
        {"value": 1.0, "mode": "min"},
    ],
)
def test_nonsense_is_no_ranking(tmp_path, best):
    path = write(tmp_path, 1, best)
    assert read_ranking(path) is None and list_best(tmp_path, "min") == []


def test_a_folder_without_a_manifest_has_no_ranking(tmp_path):
    path = write(tmp_path, 1, Ranking(1.0, "min", 1))
    assert read_ranking(path) == Ranking(1.0, "min", 1)
    shutil.rmtree(path)
    assert read_ranking(path) is None
