"""`stepladder verify precision`: a verdict that can be bad."""

import json

import pytest

from stepladder.cli.main import main

TINY = [
    "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "16",
    "--train.batch", "4", "--train.evaluate_batches", "2", "--train.device", "cpu",
]  # fmt: skip


def verify(capsys, *words, code=0):
    assert main(["verify", "precision", *TINY, *words]) == code
    return capsys.readouterr().out


def test_bf16_trains_as_fp32_does(capsys):
    shown = verify(capsys, "--train.steps", "8")
    assert "bf16 against fp32" in shown and "it trains the same" in shown


@pytest.mark.soak
def test_a_precision_that_loses_the_updates_gets_a_bad_verdict(capsys):
    # Weights in bf16 and steps far below their last bit: nothing is learned.
    words = ["--other", "bf16-pure", "--optimizer.name", "sgd", "--optimizer.lr", "0.002",
             "--optimizer.wd", "0", "--optimizer.clip", "none",
             "--rate.kind", "constant", "--train.steps", "800"]  # fmt: skip
    found = json.loads(verify(capsys, *words, "--json", code=1))
    assert found["comparison"]["verdict"]["word"] == "bad"


def test_operations_and_gradients_are_shown_when_asked_for(capsys):
    words = ["--train.steps", "2", "--operations", "--gradients", "--other", "fp16", "--json"]
    found = json.loads(verify(capsys, *words))
    assert {"float16", "float32"} <= {row["runs_in"] for row in found["operations"]}
    assert {row["name"] for row in found["gradients"]} >= {"blocks.0.mlp.up"}


def test_an_unknown_precision_offers_the_nearest(capsys):
    assert main(["verify", "precision", "--other", "bf61"]) == 2
    assert "Did you mean 'bf16'?" in capsys.readouterr().err


def test_only_what_exists_can_be_verified(capsys):
    assert main(["verify", "presicion"]) == 2
    assert "Did you mean 'precision'?" in capsys.readouterr().err
