"""A run's folder: its name, and what is said of a run that was begun there before."""

from stepladder.job.opening.run_folder import (
    choose_folder,
    describe_data_changes,
    describe_restart,
)
from stepladder.plan import Recipe, read_recipe
from stepladder.record import Journal


def test_a_folder_is_named_after_the_time_where_none_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert choose_folder(Recipe()).parts[0] == "runs"


def test_runs_that_start_within_one_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda named: "runs/noon")
    folders = []
    for _ in range(3):
        folders.append(choose_folder(Recipe()))
        (folders[-1] / "latest").mkdir(parents=True)
    assert [str(folder) for folder in folders] == ["runs/noon", "runs/noon-2", "runs/noon-3"]


def test_a_run_that_goes_on_with_other_data_says_so(tmp_path):
    begun, other = Recipe(), read_recipe(None, ["--data.seed", "9", "--data.workers", "0"])
    assert describe_data_changes(tmp_path, other, 20) == []  # nothing was begun here
    (tmp_path / "run.toml").write_text(begun.to_toml())
    assert (
        describe_data_changes(tmp_path, begun, 20)
        == describe_data_changes(tmp_path, other, 0)
        == []
    )
    assert describe_data_changes(tmp_path, other, 20) == [
        "data.seed is 9, before it was 0: from step 20 on other samples are read"
    ]
    (tmp_path / "run.toml").write_text("[data]\nseed = []\n")
    assert describe_data_changes(tmp_path, other, 20) == []


def test_a_run_says_that_it_goes_on_and_on_how_many_ranks(tmp_path):
    assert describe_restart(tmp_path, 0, 2) == []
    with Journal(tmp_path) as journal:
        journal.write("start", step=0, ranks=2)
    assert describe_restart(tmp_path, 20, 2) == [
        "start 2 of this run, on 2 ranks: going on from step 20"
    ]
    assert describe_restart(tmp_path, 20, 1) == [
        "start 2 of this run, on 1 rank, 2 before: going on from step 20"
    ]
