"""The environment that a run records: where it ran, and nobody's secrets."""

import re
import subprocess

import pytest

from stepladder.cli.main import main
from stepladder.job.monitoring.run_journal import commit, without_secrets
from stepladder.record import read_journal
from tests.cli.commands.test_train import TINY


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train", "--train.steps", "5"], ["train", "--train.steps", "5"]),
        (["--api-key", "abc", "x"], ["--api-key", "***", "x"]),
        (["--hub.TOKEN=abc", "x"], ["--hub.TOKEN=***", "x"]),
        (["--password", "a=b"], ["--password", "***"]),
        (["s3://me:pass@host/x"], ["s3://host/x"]),
        (["tokens.bin"], ["tokens.bin"]),
    ],
)
def test_a_command_is_kept_without_its_secrets(words, shown):
    assert without_secrets(words) == shown


def test_the_commit_says_whether_files_differ_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None

    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=e@e"]
        subprocess.run(["git", *who, *words], check=True, capture_output=True)

    (tmp_path / "a").write_text("1")
    git("init"), git("add", "a"), git("commit", "-m", "first")
    head = commit()
    assert len(head) == 12
    (tmp_path / "a").write_text("2")
    assert commit() == f"{head} (changed)"
    monkeypatch.setenv("PATH", "")
    assert commit() is None


def test_a_run_keeps_its_environment_and_tells_its_trackers(tmp_path, capsys):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "run"
    words = ["--run.folder", str(folder), "--train.steps", "4"]
    words += ["--run.track", "tensorboard,prometheus:0"]
    assert main(["train", *TINY, *words]) == 0
    (start,) = read_journal(folder, kind="start")
    kept = start["environment"]
    assert kept["ranks"] == 1 and kept["device"].startswith("cpu: ") and kept["torch"]
    found = accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    losses = [entry["loss"] for entry in read_journal(folder, kind="step")]
    assert [e.value for e in found.Scalars("train/loss")] == pytest.approx(losses)
    assert re.search(
        r"metrics are served at http://127.0.0.1:[1-9]\d+/metrics", capsys.readouterr().out
    )


def test_a_tracker_nobody_knows_is_told_before_the_first_step(tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["--run.folder", str(folder), "--run.track", "tensorboard,comet"]
    assert main(["train", *TINY, *words]) == 2
    said = "run.track: 'comet' is not a tracker. "
    assert capsys.readouterr().err.startswith(said) and not folder.exists()
