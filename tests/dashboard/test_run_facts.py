"""Beside the curves: the state of a run, forecast against measured, who holds the others up."""

import os
import time

import pytest

from stepladder.dashboard import JournalIndex
from stepladder.dashboard.run_facts import headline, run_facts
from stepladder.record import Journal, journal_path
from stepladder.record.journal_writer import note_end


def read(folder):
    index = JournalIndex(folder)
    while index.follow():
        pass
    return index


def test_a_run_is_live_then_silent_then_finished_and_live_again(tmp_path):
    with Journal(tmp_path) as journal:
        assert run_facts(read(tmp_path))["state"] == "empty"
        journal.write("start", step=0)
        journal.write("step", step=0, loss=1.0, seconds=2.0)
        assert run_facts(read(tmp_path))["state"] == "live"
        long_ago = time.time() - 61
        os.utime(journal_path(tmp_path), (long_ago, long_ago))
        assert run_facts(read(tmp_path))["state"] == "silent"
        journal.write("step", step=1, loss=1.0, seconds=60.0)
        os.utime(journal_path(tmp_path), (long_ago, long_ago))
        assert run_facts(read(tmp_path))["state"] == "live", "a slow step is no silence"
        journal.write("summary", steps=2)
        assert run_facts(read(tmp_path))["state"] == "finished"
        journal.write("start", step=2)
        assert run_facts(read(tmp_path))["state"] == "live"


def test_a_run_whose_folder_went_away_is_silent(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("step", step=0, loss=1.0)
    index = read(tmp_path)
    journal_path(tmp_path).unlink()
    assert run_facts(index)["state"] == headline(index)["state"] == "silent"


def test_a_headline_has_step_loss_rate_and_the_last_validation(tmp_path):
    (tmp_path / "run.toml").write_text("[train]\nsteps = 40\n")
    with Journal(tmp_path) as journal:
        journal.write("step", step=7, loss=2.5, tokens_per_second=10.0)
        journal.write("evaluation", step=7, loss=2.75)
    found = headline(read(tmp_path))
    assert (found["step"], found["steps"], found["loss"]) == (7, 40, 2.5)
    assert (found["tokens_per_second"], found["validation"], found["read"]) == (10.0, 2.75, 1.0)


@pytest.mark.parametrize("text", ["", "not toml [", "[train]\nsteps = 'many'", "train = 3", "\xff"])
def test_a_recipe_that_is_missing_or_broken_leaves_the_length_unknown(tmp_path, text):
    if text:
        (tmp_path / "run.toml").write_text(text, encoding="latin-1")
    with Journal(tmp_path) as journal:
        journal.write("step", step=0, loss=1.0)
    assert headline(read(tmp_path))["steps"] is None


def test_forecast_stands_beside_measured(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write(
            "forecast",
            memory={"parameters": 100, "logits": 0, "activations": 50, "peak_bytes": 150},
            time={"matrix": 0.5, "bubble": 0.0, "data": 0.0, "step_seconds": 0.5},
            tokens_per_step=1000,
        )
        journal.write(
            "measured",
            memory={"parameters": 100, "logits": 0, "activations": 40},
            step_seconds=0.4,
            data_seconds=0.1,
            tokens_per_second=2500.0,
        )
    rows = {row["what"]: row for row in run_facts(read(tmp_path))["comparison"]}
    assert list(rows) == [
        "step", "tokens/s", "peak memory", "parameters", "activations", "matrix time", "data time"
    ]  # fmt: skip
    assert rows["step"]["off"] == pytest.approx(0.25)
    assert rows["tokens/s"]["forecast"] == 2000 and rows["tokens/s"]["off"] == pytest.approx(-0.2)
    assert rows["peak memory"]["measured"] == 140
    assert rows["data time"]["measured"] == 0.1 and rows["matrix time"]["measured"] is None


@pytest.mark.parametrize(
    "forecast", [{}, {"time": None}, {"memory": 3, "time": "x"}, {"tokens_per_step": "many"}]
)
def test_a_forecast_that_knows_little_is_shown_as_far_as_it_goes(tmp_path, forecast):
    with Journal(tmp_path) as journal:
        journal.write("forecast", **forecast)
    assert run_facts(read(tmp_path))["comparison"] == []


def test_the_rank_that_holds_the_others_up_is_told(tmp_path):
    with Journal(tmp_path) as journal:
        for step in range(3):
            journal.write(
                "ranks",
                step=step,
                own_seconds=[1.0, 1.0, 1.3 + step / 10, 1.05],
                wait_seconds=[0.3, 0.3, 0.0, 0.2],
                memory_bytes=[5, 6, 7],
            )
    ranks = run_facts(read(tmp_path))["ranks"]
    assert [rank["straggles"] for rank in ranks] == [False, False, True, False]
    assert ranks[2]["own_seconds"] == pytest.approx(1.45)  # the first step does not count
    assert [rank["memory_bytes"] for rank in ranks] == [5, 6, 7, None]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([1.0], ""),
        ([1.0, 1.05, 1.0], "no rank holds the others up"),
        ([1.0, 0.7], "rank 0 holds the others up: 18% more work than the median"),
        ([1.0, 1.0, 1.0, 2.0, 1.5, 1.0],
         "rank 3 and rank 4 hold the others up: up to 100% more work than the median"),
    ],
)  # fmt: skip
def test_the_verdict_on_ranks_is_a_true_sentence(tmp_path, own, said):
    with Journal(tmp_path) as journal:
        journal.write("ranks", step=0, own_seconds=own)
    assert run_facts(read(tmp_path))["ranks_verdict"] == said


def test_next_to_nothing_has_no_error_in_percent(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("forecast", memory={"logits": 6553600, "optimizer": 9, "peak_bytes": 1e9})
        journal.write("measured", memory={"logits": 1, "optimizer": 1e9})
    rows = {row["what"]: row["off"] for row in run_facts(read(tmp_path))["comparison"]}
    assert rows["logits"] is rows["optimizer"] is None and rows["peak memory"] is not None


def test_a_script_that_ended_is_finished_and_one_that_raised_is_failed(tmp_path):
    journal = Journal(tmp_path)
    with note_end(journal):
        journal.write("start", step=0)
        journal.write("step", step=0, loss=1.0, unit="samples", tokens_per_second=3.0)
    found = run_facts(read(tmp_path))
    assert (found["state"], found["unit"], found["failure"]) == ("finished", "samples", None)
    with pytest.raises(RuntimeError), note_end(journal):
        journal.write("start", step=1)
        raise RuntimeError("no more\nof it")
    journal.close()
    found = run_facts(read(tmp_path))
    assert (found["state"], found["failure"]) == ("failed", "RuntimeError: no more")
    assert found["events"][-1]["text"] == "ended by RuntimeError: no more"


def test_how_long_a_run_has_been_silent_is_told(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("step", step=0, loss=1.0)
    assert run_facts(read(tmp_path))["silent_seconds"] is None
    old = time.time() - 600
    os.utime(journal_path(tmp_path), (old, old))
    assert run_facts(read(tmp_path))["silent_seconds"] == pytest.approx(600, abs=100)


def test_ranks_of_another_number_before_a_restart_do_not_count(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("ranks", step=0, own_seconds=[9.0, 9.0, 9.0, 9.0])
        journal.write("ranks", step=1, own_seconds=[1.0, 2.0])
    assert [rank["own_seconds"] for rank in run_facts(read(tmp_path))["ranks"]] == [1.0, 2.0]


def test_plan_environment_and_events_are_handed_on(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write("start", step=0, plan="fp32", because="it fits", environment={"torch": "2"})
        journal.write("start", step=0, plan="bf16")
        journal.write("event", step=0, text="x" * 10_000)
    found = run_facts(read(tmp_path))
    assert (found["plan"], found["because"]) == ("bf16", "it fits")
    assert found["environment"] == {"torch": "2"} and found["starts"] == 2
    assert len(found["events"][-1]["text"]) == 500
