"""Every command takes a model of the user's own in the same words."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from stepladder.cli.main import main
from stepladder.verify import parity_trial
from tests.ranks import POOL

OWN = """\
import torch
from torch import nn

from own_width import WIDTH


def make():
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 2))


def batch():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(8, WIDTH, generator=draw), torch.randint(0, 2, (8,), generator=draw)


def data():
    inputs, targets = batch()
    return inputs.repeat(4, 1), targets.repeat(4)


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def bad_loss(outputs, targets):
    return outputs[:, 5].mean()
"""
HERE, SAID = "own_code.py:make", "Using data and loss of own_code.py.\n"


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_code.py").write_text(OWN)
    (tmp_path / "own_width.py").write_text("WIDTH = 4\n")
    yield
    for name in ("own_code", "own_width"):
        sys.modules.pop(name, None)


def answer(capsys, *words: str, code: int = 0) -> tuple[dict, str]:
    assert main([*words, "--json"]) == code
    told = capsys.readouterr()
    return json.loads(told.out), told.err


def test_plan_traces_it(capsys):
    found, said = answer(capsys, "plan", HERE, "--on", "2 H100-80GB", "--plan", "fp32 ddp batch=4")
    assert found["plan"].startswith("fp32 replicate=2") and said == "Using data of own_code.py.\n"
    assert main(["plan", HERE, "--on", "1 H100-80GB", "--sample", "own_code.py:batch"]) == 0
    assert "Sequential: 58 parameters" in capsys.readouterr().out


def test_train_and_profile_read_it_and_a_recipe_has_keys_for_it(capsys):
    small = ["--train.steps", "2", "--train.batch", "4", "--plan", "fp32"]
    found, _ = answer(capsys, "train", HERE, *small, "--run.folder", "one")
    Path("run.toml").write_text(
        f'[model]\nname = "{HERE}"\n[data]\nsource = "own_code.py:data"\n'
        '[train]\nloss = "own_code.py:loss"\n'
    )
    named, _ = answer(capsys, "train", "run.toml", *small, "--run.folder", "two")
    assert found["steps"] == 2 and found["training loss"] == named["training loss"]
    assert SAID.strip() in Path("one/journal.jsonl").read_text()
    _, said = answer(capsys, "profile", HERE, "--steps", "1", "--plan", "fp32")
    assert said == SAID


def test_verify_takes_it_for_every_proof(capsys, monkeypatch):
    monkeypatch.setattr(parity_trial, "Ranks", lambda ranks: nullcontext(POOL))  # started already
    POOL.call(os.chdir, "/")  # ranks may work elsewhere
    once = ["--steps", "1", "--optimizer", "sgd lr=0.1"]
    found, said = answer(capsys, "verify", "parity", HERE, "--plans", "fp32 micro=2", *once)
    assert found["same"] and found["model"] == HERE and said.startswith(SAID)
    words = ["--train.steps", "2", "--train.batch", "4"]
    found, said = answer(capsys, "verify", "precision", HERE, *words)
    assert found["comparison"]["reference"] and said == SAID


def test_bench_measures_it_where_a_model_of_ones_own_makes_sense(capsys):
    words = ["--steps", "1", "--batch", "2"]
    rows, said = answer(capsys, "bench", "accumulation", HERE, *words)
    assert rows[0]["losses"] and said.startswith(SAID)
    assert main(["bench", "dp", HERE]) == 2
    assert capsys.readouterr().err == (
        "model: the table 'dp' trains no model of your own. Name a preset; these do: precision, "
        "batch, recompute, data, zero, scaling, accumulation, learning-rate.\n"
    )


def test_launch_hands_it_over(capsys):
    words = ["--data", "own_code.py:data", "--dry-run"]
    assert main(["launch", HERE, "--on", "slurm", "--nodes", "2", *words]) == 0
    assert f"train {HERE} " in (text := capsys.readouterr().out)
    assert "--data.source=own_code.py:data" in text
    assert main(["launch", HERE, "--on", "kubernetes", "--image", "repository/it", *words]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{key}: {text} is a file of this machine, and pods see none of them. Put it into the "
        "image, and write package.module:name."
        for key, text in (("model.name", HERE), ("data.source", "own_code.py:data"))
    ]
    module = ["launch", "own_code:make", "--on", "kubernetes", "--image", "repository/it"]
    assert main([*module, "--dry-run"]) == 0
    assert "own_code:make" in capsys.readouterr().out


def test_a_preset_is_planned_by_its_name_alone(capsys):
    words = ["--on", "1 H100-80GB", "--sample", "own_code.py:batch"]
    assert main(["plan", "gpt2", *words]) == 2
    assert capsys.readouterr().err == (
        "sample: is for a model of your own, and gpt2 is known by its name. "
        "Leave it out, or name file.py:make.\n"
    )


def test_an_error_in_the_users_loss_is_a_line_with_theirs_and_none_of_ours(capsys):
    words = ["--loss", "own_code.py:bad_loss", "--train.steps", "1", "--plan", "fp32"]
    assert main(["train", HERE, *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("loss: bad_loss does not take outputs of float32 of shape (16, 2) with")
    assert "own_code.py:26: return outputs[:, 5].mean()" in told and told.count(".py") == 1
    assert "IndexError" in told and told.count("\n") == 1
