"""`stepladder verify resume`: real processes are killed; the table, the exit code, the mistakes."""

import json

import pytest

from stepladder.cli import verify_resume as resumption
from stepladder.cli.main import main
from stepladder.launch import Ranks
from stepladder.verify.resume_verdict import Resumption

TINY = "gpt:layers=1,hidden=16,heads=2,vocab=32"
FINE = Resumption("fp32", (1, 1), True, (5,), (4,), 0.0, 0.0, 0.0, (3.0, 2.0), (3.0, 2.0))
BAD = Resumption("fp16", (1, 1), True, loss=0.0, different=("data: the rows part at step 4",))
REFUSED = Resumption("tf32", (1, 1), True, problem="precision: no.", refused=True)
RECIPE = f"""
[model]
name = "{TINY.replace("vocab=32", "vocab=256")}"
sequence = 8
dropout = 0.1
[data]
seed = 3
[train]
batch = 8
seed = 5
[optimizer]
name = "sgd"
lr = 0.1
"""


def test_a_rank_of_two_is_killed_and_one_goes_on_in_its_place(capsys, tmp_path):
    plot = tmp_path / "p.png"
    words = [TINY, "--plans", "fp32 zero3", "--then", "fp32", "--json"]
    assert main(["verify", "resume", *words, "--plot", str(plot)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is True
    (row,) = found["runs"]
    assert (row["plan"], row["ranks"], row["verdict"]) == (
        "fp32 zero3 shard=2 → fp32",
        [2, 1],
        "same",
    )
    assert (row["killed_in"], row["resumed_at"]) == ([5], [4])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_recipe_is_resumed_as_it_trains(capsys, tmp_path):
    recipe = tmp_path / "run.toml"
    recipe.write_text(RECIPE)
    assert main(["verify", "resume", str(recipe), "--plan", "fp16"]) == 0
    shown = capsys.readouterr().out
    assert "same bits" in shown
    assert "The run went on as if it had never been stopped." in shown


@pytest.mark.parametrize(
    ("rows", "code"), [([FINE], 0), ([FINE, BAD], 1), ([REFUSED], 2), ([REFUSED, BAD], 1)]
)
def test_the_exit_code_tells_a_difference_from_a_mistake(rows, code):
    assert resumption.exit_code(rows) == code


def test_what_is_different_is_told(capsys):
    resumption.show([FINE, BAD, REFUSED], "m", 8)
    shown = capsys.readouterr().out
    assert "fp16: data: the rows part at step 4." in shown and "DIFFERENT" in shown
    assert "tf32: precision: no." in shown and "refused" in shown
    assert "2 of 3 runs did not go on as if they had never been stopped." in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plan", "fp32 zero4"], "'zero4' is not a word of a plan"),
        (["--steps", "3"], "3 are too few to save, go on, be killed and resume 1 times"),
        (["--steps", "0"], "0 are too few to save"),
        (["--ranks", "0"], "ranks: 0 is too few."),
        (["--plan", "fp32 tensor=2", "--ranks", "3"], "is for 2 ranks"),
        (["--plan", "fp32 micro=4 batch=6"], "6 does not divide by 4 "),
        (["gtp2"], "Did you mean 'gpt2'?"),
        (["--workers", "many"], "'many' is not a number of workers"),
        (["--train.batch", "4", "--optimizer", "sgd"], "--optimizer is a recipe's own"),
        (["--optimizer", "sgd", "--optimizer", "adamw"], "2 optimizers, and a run resumes with"),
        (["nowhere.toml"], "nowhere.toml cannot be read"),
        (["--plans", " ; "], "names no plan"),
        (["--plan", "fp32", "--plans", "fp16"], "--plan and --plans are both given"),
    ],
)
def test_a_mistake_is_one_line(capsys, words, said):
    assert main(["verify", "resume", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_every_plan_is_judged_before_a_rank_starts_and_all_problems_are_told(capsys, monkeypatch):
    monkeypatch.setattr(Ranks, "__enter__", lambda ranks: pytest.fail("ranks were started"))
    plans = "fp32 tensor=7; fp32 ddp replicate=3 batch=4 micro=2; fp32 pipeline=5"
    words = [TINY, "--plans", plans, "--then", "fp32 context=3"]
    assert main(["verify", "resume", *words]) == 2
    told = capsys.readouterr().err.splitlines()
    for said in (
        "layout.tensor: 7 ways cannot cut 2 attention heads evenly (in 'fp32 tensor=7'). Use 1 or",
        "batch.sequences: 4 does not divide by 6 ",
        "layout.pipeline: 5 stages for 1 blocks leaves some stages empty (in 'fp32 pipeline=5')",
        "layout.context: 3 ways cannot slice 16 tokens evenly (in 'fp32 context=3')",
    ):
        assert sum(line.startswith(said) for line in told) == 1, said
    assert main(["verify", "resume", "--plan", "fp32 zero4", "--then", "fp33"]) == 2
    assert [line[:13] for line in capsys.readouterr().err.splitlines()] == [
        "plan: 'zero4'",
        "plan: 'fp33' ",
    ]


def test_a_model_that_cannot_be_looked_into_is_left_to_its_ranks(capsys, tmp_path):
    """They refuse its batch; a plan that breaks a rule of its own is refused before they start."""
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import torch\n\ndef make():\n    return torch.nn.Linear(3, 2)\n\n"
        "def batch():\n    return torch.zeros(16, 4), torch.zeros(16, dtype=torch.long)\n"
    )
    words = [f"{broken}:make", "--plan", "fp32"]
    assert main(["verify", "resume", *words]) == 2
    assert "fp32: batch: Linear does not take its inputs, float32 of" in capsys.readouterr().out
    assert main(["verify", "resume", *words, "--then", "fp32 compress=bf16"]) == 2
    assert "compress: bf16 shrinks gradients that whole copies" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "words"),
    [("parity", ["--then", "fp32"]), ("precision", ["--plans", "fp32"]), ("parity", ["--ranks=2"])],
)
def test_what_belongs_to_another_proof_is_refused(capsys, what, words):
    assert main(["verify", what, *words]) == 2
    assert f"is not for {what}" in capsys.readouterr().err
