"""`stepladder verify parity`: the table, the verdict, the exit code, the mistakes."""

import json
from dataclasses import replace

import pytest

from stepladder.cli import verify_parity as sameness
from stepladder.cli.main import main
from stepladder.verify import Sameness

TINY = ["llama:layers=1,hidden=16,heads=2,vocab=32", "--steps", "2"]
FINE = Sameness(
    "fp32 ddp", "sgd", 2, loss=1e-7, norm=1e-7, parameters=1e-6, worst="head", tolerance=1e-5,
    norm_tolerance=1e-5, state_tolerance=1e-4, by_step=(1e-7, 1e-7),
)  # fmt: skip


def verify(*words):
    return main(["verify", "parity", *TINY, *words])


def test_plans_are_compared_drawn_and_reported(capsys, tmp_path):
    plot = tmp_path / "p.png"
    words = ("--plans", "fp32 ddp; fp32 zero3 shard=2", "--optimizer", "sgd lr=0.1", "--json")
    assert verify(*words, "--plot", str(plot)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is True
    assert [row["plan"] for row in found["plans"]] == ["fp32 replicate=2", "fp32 zero3 shard=2"]
    assert all(row["verdict"] == "same" and row["loss"] < 1e-5 for row in found["plans"])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_plan_that_names_its_optimizer_is_tried_under_that_one(capsys):
    assert verify("--plans", "fp32 optimizer='sgd lr=0.3'; fp32 accumulate=2", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["plans"]
    assert [row["optimizer"] for row in rows] == [
        "sgd lr=0.3", "sgd lr=0.1", "adamw lr=0.001 clip=0.1"
    ]  # fmt: skip


def test_a_plan_that_is_refused_says_why_and_the_others_go_on(capsys):
    plans = "tf32 ddp; fp32 ddp"  # which needs matrix units that no CPU has
    assert verify("--plans", plans, "--optimizer", "sgd lr=0.1") == 2
    shown = capsys.readouterr().out
    assert "refused" in shown and "same" in shown
    assert "1 of 2 plans were not shown to compute what one device computes." in shown


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([FINE], 0),
        ([FINE, replace(FINE, loss=1e-4)], 1),
        ([FINE, replace(FINE, norm=float("nan"))], 1),
        ([FINE, replace(FINE, parameters=1e-3)], 1),
        ([FINE, replace(FINE, buffers=1e-3)], 1),
        ([FINE, replace(FINE, problem="layout: no", refused=True)], 2),
        ([FINE, replace(FINE, problem="RuntimeError: no")], 1),
        ([replace(FINE, loss=1.0), replace(FINE, problem="layout: no", refused=True)], 1),
    ],
)
def test_the_exit_code_tells_a_difference_from_a_mistake(rows, code):
    assert sameness.exit_code(rows) == code


def test_a_difference_names_the_parameter_that_is_furthest(capsys):
    sameness.show([FINE, replace(FINE, plan="fp32 zero1", loss=0.5)], "m", 2)
    shown = capsys.readouterr().out
    assert "DIFFERENT" in shown and "fp32 zero1: furthest is head." in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plans", "fp32 zero4"], "'zero4' is not a word of a plan"),
        (["--plans", "fp32 ddp compress=powersgd:2"], "sends less than the gradients"),
        (["gtp2"], "Did you mean 'gpt2'?"),
        (["nowhere.py:make"], "there is no file nowhere.py"),
        (["--steps", "0"], "0 is not a number of steps"),
        (["--data", "digits"], "data: 'digits' does not name data of yours"),
        (["--optimizer", "sgb"], "'sgb' is not an optimizer"),
    ],
)
def test_a_mistake_is_one_line(capsys, words, said):
    assert main(["verify", "parity", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
