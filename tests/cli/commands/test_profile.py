"""`stepladder profile` as a user runs it."""

import json

import pytest

from stepladder.cli.main import main
from stepladder.record import read_journal

SMALL = ["--model.name", "gpt-tiny", "--model.sequence", "32", "--train.batch", "4"]


def test_a_profile_is_a_table_a_verdict_and_files(tmp_path, capsys):
    folder, plot = tmp_path / "run", tmp_path / "causes.png"
    words = ["profile", "--steps", "2", "--memory", "--plot", str(plot), "--plan", "fp32"]
    assert main([*words, *SMALL, "--run.folder", str(folder)]) == 0
    said = capsys.readouterr().out
    for cause in ("matrix", "memory bound", "launch", "host", "unexplained", "forecast ms"):
        assert cause in said
    assert "verdict: " in said and "-bound: " in said
    assert "the profiler made the step" in said
    assert "TFLOP/s (of an unknown peak)" in said
    assert "Memory over a step" in said and "forecast peak MiB" in said
    assert "the peak of" in said
    assert {path.name for path in (folder / "profile").iterdir()} == {
        "trace-rank0.json.gz", "memory.png"
    }  # fmt: skip
    assert plot.stat().st_size > 5000
    (entry,) = read_journal(folder, kind="profile")
    assert set(entry["causes"]) > {"matrix", "attention", "launch"}


def test_json_holds_all_of_it(tmp_path, capsys):
    words = ["profile", "--steps", "1", "--memory", "--json", "--plan", "fp32 micro=2"]
    assert main([*words, *SMALL, "--run.folder", str(tmp_path / "run")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["causes"].values()) == pytest.approx(
        found["step_seconds"] - found["unexplained_seconds"]
    )
    assert found["memory"]["at"]["peak"]["parameters"] > 0
    names = [moment["moment"] for moment in found["memory"]["forecast"]]
    assert names[0] == "answer" and names[-1] == "step"


def test_ranks_are_profiled_together(tmp_path, capfd):
    words = ["profile", "--ranks", "2", "--steps", "1", "--plan", "fp32 zero1 shard=2"]
    assert main([*words, *SMALL, "--run.folder", str(tmp_path / "run")]) == 0
    said = capfd.readouterr().out
    assert "all_reduce" in said and "2 ranks" in said
    (drawn,) = read_journal(tmp_path / "run", kind="timeline")
    assert [lane["rank"] for lane in drawn["lanes"]] == [0, 1]
    assert all(span["seconds"] > 0 for lane in drawn["lanes"] for span in lane["spans"])
    (talk,) = read_journal(tmp_path / "run", kind="collectives")
    assert talk["seconds"]["all_reduce"] > 0
    assert {path.name for path in (tmp_path / "run" / "profile").iterdir()} == {
        "trace-rank0.json.gz", "trace-rank1.json.gz"
    }  # fmt: skip


@pytest.mark.parametrize("words", [["--steps", "0"], ["--ranks", "0"]])
def test_too_few_is_refused(words, capsys):
    assert main(["profile", *words]) == 2
    assert "0 is too few to profile. Use 1 or more." in capsys.readouterr().err
