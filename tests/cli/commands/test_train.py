"""`stepladder train` as a newcomer, a careful user and a clumsy one meet it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from stepladder.cli.main import main
from stepladder.record import read_journal

TINY = [
    "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "16",
    "--train.batch", "4", "--train.report_every", "2", "--train.evaluate_batches", "1",
    "--train.sample", "8", "--train.device", "cpu",
]  # fmt: skip


def train(folder, *words):
    return main(["train", *TINY, "--run.folder", str(folder), *words])


def test_a_run_leaves_plan_journal_checkpoint_and_plot(tmp_path, capsys):
    assert train(tmp_path / "run", "--train.steps", "6", "--train.evaluate_every", "3") == 0
    folder = tmp_path / "run"
    assert {p.name for p in folder.iterdir()} >= {
        "plan.toml", "run.toml", "journal.jsonl", "step-000006", "latest", "loss.png"
    }  # fmt: skip
    kinds = [entry["kind"] for entry in read_journal(folder)]
    assert kinds.count("step") == 4 and kinds.count("evaluation") == 2
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    for word in ("loss", "tokens/s", "validation loss", "A sample after 'def '", "Measured"):
        assert word in shown


def test_the_written_recipe_and_plan_are_the_run_again(tmp_path, capsys):
    train(tmp_path / "one", "--train.steps", "3", "--plan.precision", "bf16")
    recipe = tmp_path / "one" / "run.toml"
    assert main(["train", str(recipe), "--run.folder", str(tmp_path / "two")]) == 0
    losses = [
        [entry["loss"] for entry in read_journal(tmp_path / name, kind="step")]
        for name in ("one", "two")
    ]
    assert losses[0] == losses[1]
    capsys.readouterr()


def test_json_prints_the_figures_and_nothing_else(tmp_path, capsys):
    assert train(tmp_path / "run", "--train.steps", "2", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["steps"] == 2 and figures["validation loss"] > 0


def test_resuming_ends_where_the_whole_run_ends(tmp_path, capsys):
    train(tmp_path / "whole", "--train.steps", "6", "--json")
    train(tmp_path / "cut", "--train.steps", "6", "--train.save_every", "2", "--json")
    whole, cut = (tmp_path / name for name in ("whole", "cut"))
    for name in ("step-000006", "latest"):  # as if it had been killed after step 4
        path = cut / name
        path.unlink() if path.is_file() else __import__("shutil").rmtree(path)
    (cut / "latest").write_text("step-000004")
    train(cut, "--train.steps", "6", "--run.resume", "true", "--json")
    files = [
        (folder / "step-000006" / "model-00000.safetensors").read_bytes() for folder in (whole, cut)
    ]
    assert files[0] == files[1]
    capsys.readouterr()


MISTAKES = {
    ("--train.stps", "3"): "train.stps: is not a setting. Did you mean 'steps'?",
    ("--plan.precision", "bf17"): "precision: 'bf17' is not a precision. Did you mean 'bf16'?",
    ("--plan.micro", "3"): "batch.sequences: 4 does not divide by 3 "
    "(micro-batches of 3 x 1 data ranks). Nearest that do: 3 or 6.",
    ("--model.name", "gtp2"): "model: 'gtp2' is not a known model. Did you mean 'gpt2'?",
    ("--data.source", "nowhere/at/all"): "nowhere/at/all",
    ("--train.device", "cuda:9"): "device",
    ("--train.nonfinite", "hope"): "train.nonfinite: 'hope' is not a policy. "
    "Choose one of: stop, skip, backoff.",
    ("--train.spike", "rewnd"): "train.spike: 'rewnd' is not a policy. Did you mean 'rewind'?",
    ("--train.spike", "rewind"): "train.spike: rewind goes back to a checkpoint, and "
    "train.save_every=0 saves none. Set train.save_every, such as 100.",
    ("--train.check_copies_every", "-1"): "train.check_copies_every: -1 is too few.",
    ("--rate.kind", "sine"): "rate: 'sine' is not a schedule.",
    ("--optimizer.lr", "fast"): "optimizer.lr: 'fast' is not a number",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_traceback(tmp_path, capsys, words):
    assert train(tmp_path / "run", "--train.steps", "2", *words) == 2
    error = capsys.readouterr().err
    assert MISTAKES[words] in error
    assert error.count("\n") == 1 and "Traceback" not in error


def test_an_empty_corpus_says_so(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    assert train(tmp_path / "run", "--data.source", f"{tmp_path}/texts") == 2
    assert str(tmp_path / "texts") in capsys.readouterr().err


def test_a_missing_recipe_says_so(capsys):
    assert main(["train", "no-such-run.toml"]) == 2
    assert capsys.readouterr().err == (
        "run file: no-such-run.toml cannot be read (No such file or directory). Check its name.\n"
    )


def test_a_folder_that_cannot_be_written_says_so(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert train(tmp_path / "file" / "run", "--train.steps", "1") == 2
    assert "cannot be written (Not a directory)" in capsys.readouterr().err


def test_a_folder_with_a_run_in_it_is_not_overwritten(tmp_path, capsys):
    train(tmp_path / "run", "--train.steps", "1")
    before = (tmp_path / "run" / "run.toml").read_text()
    assert train(tmp_path / "run", "--train.steps", "9") == 2
    assert "holds a run already. Add --run.resume true" in capsys.readouterr().err
    assert (tmp_path / "run" / "run.toml").read_text() == before


def test_a_loss_that_diverges_stops_with_its_step_named(tmp_path, capsys):
    words = ("--optimizer.name", "sgd", "--optimizer.lr", "1e30", "--optimizer.clip", "none")
    assert train(tmp_path / "run", "--train.steps", "9", "--train.report_every", "1", *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("step ") and "not finite" in error


def test_pictures_train_too(tmp_path, capsys):
    words = ("--model.name", "resnet-tiny", "--data.source", "digits", "--train.steps", "2")
    assert train(tmp_path / "run", *words) == 0
    assert "A sample" not in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_a_checkpoint_that_goes_on(tmp_path, number):
    words = [*TINY, "--run.folder", str(tmp_path / "run"), "--train.steps", "100000"]
    code = [sys.executable, "-m", "stepladder.cli.main", "train", *words]
    process = subprocess.Popen(
        code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    journal = tmp_path / "run" / "journal.jsonl"
    deadline = time.monotonic() + 120
    # Its first step: what is written before that, it writes before it listens to signals.
    while not (journal.exists() and '"kind":"step"' in journal.read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    out, error = process.communicate(timeout=120)
    assert "Traceback" not in error
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert f"{number.name}: saving at step" in out
    latest = (tmp_path / "run" / "latest").read_text()
    done = int(latest.removeprefix("step-"))
    steps = str(done + 1)
    assert train(tmp_path / "run", "--run.resume", "true", "--train.steps", steps, "--json") == 0
