"""`--plan "auto …"`: what is chosen for a recipe's batch, and that a run which goes on keeps it."""

from importlib import import_module
from pathlib import Path

import pytest

from stepladder import job
from stepladder.errors import StepladderError
from stepladder.job.opening import automatic_plan
from stepladder.job.opening.automatic_plan import kept_plan, words_where_none
from stepladder.plan import Plan, read_recipe
from stepladder.record import read_journal

TINY = [
    "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "16",
    "--train.batch", "4", "--train.evaluate_batches", "1", "--train.device", "cpu",
    "--train.sample", "0", "--train.steps", "2",
]  # fmt: skip


def plan_in(folder: Path) -> Plan:
    return Plan.from_toml((folder / "plan.toml").read_text())


def because(folder: Path) -> list[str]:
    return [entry["because"] for entry in read_journal(folder, kind="start")]


def test_training_with_a_plan_that_was_tried_is_as_with_that_plan_written_out(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of another start, nothing is known
    words = "auto tune=0.001 compile=off"  # one trial, then the budget is spent
    settings = [*TINY, "--optimizer.name", "sgd", "--optimizer.lr", "0.1"]
    tried = job.train(settings=[*settings, "--run.folder", str(tmp_path / "a")], plan=words)
    chosen = plan_in(tmp_path / "a")
    assert chosen.batch.sequences == 4 and chosen.optimizer.name == "sgd"
    texts = [entry["text"] for entry in read_journal(tmp_path / "a", kind="event")]
    assert sum(text.startswith("tuning: ") and "ms a step" in text for text in texts) == 1, texts
    assert "tried here" in because(tmp_path / "a")[0]
    written = job.train(settings=[*settings, "--run.folder", str(tmp_path / "b")], plan=chosen)
    assert tried.steps == written.steps == 2
    assert tried.validation_loss == written.validation_loss


def test_a_batch_among_the_words_is_the_runs(tmp_path):
    job.train(settings=[*TINY, "--run.folder", str(tmp_path)], plan="auto bf16 batch=8")
    assert plan_in(tmp_path).batch.sequences == 8
    assert read_recipe(tmp_path / "run.toml").train.batch == 8  # and not the recipe's 4
    assert plan_in(tmp_path).precision.compute == "bf16"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("auto tune=x", "tune: 'x' is not a number of seconds"),
        ("auto bogus", "plan: 'bogus' is not a word of a plan"),
        ("auto tune=1 tune=2", "tune: given twice, as 1 and 2"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_opened(words, said, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(StepladderError) as refused:
        job.train(settings=[*TINY, "--run.folder", str(folder)], plan=words)
    assert str(refused.value).startswith(said)
    assert not folder.exists()


def test_a_run_that_goes_on_keeps_the_plan_that_was_chosen(tmp_path):
    first = [*TINY, "--run.folder", str(tmp_path)]
    job.train(settings=first, plan="fp32 micro=2 recompute=blocks")
    again = [*first, "--train.steps", "4", "--run.resume", "true"]
    for plan, steps in (("auto", "4"), (None, "5")):
        done = job.train(settings=[*again, "--train.steps", steps], plan=plan)
        assert done.steps == int(steps) and plan_in(tmp_path).recompute.kind == "blocks"
        assert plan_in(tmp_path).batch.micro == 2
    assert because(tmp_path)[1:] == ["the plan that this run was begun with"] * 2
    job.train(settings=[*again, "--train.steps", "6"], plan="fp32")  # what is named replaces it
    assert plan_in(tmp_path).recompute.kind == "none"


def test_the_plan_that_is_kept_is_fitted_to_ranks_and_to_another_batch(tmp_path):
    recipe = read_recipe(None, [*TINY, "--run.folder", str(tmp_path), "--run.resume", "true"])
    assert kept_plan(recipe, elastic=False) is None  # nothing was saved there
    (tmp_path / "latest").mkdir()
    assert kept_plan(recipe, elastic=False) is None  # nor is its plan known
    (tmp_path / "run.toml").write_text(recipe.to_toml())
    (tmp_path / "plan.toml").write_text(
        Plan.parse("fp32 batch=4 micro=2 accumulate=2").settle(1).to_toml()
    )
    kept = kept_plan(recipe, elastic=False)
    assert kept and kept[0].batch.sequences == 4 and kept[0].batch.micro == 2
    larger = read_recipe(None, [*TINY, "--run.folder", str(tmp_path), "--train.batch", "16"])
    assert kept_plan(larger, elastic=False) is None  # begun anew
    kept = kept_plan(larger, elastic=True)
    assert kept and kept[0].batch.sequences is None and kept[0].batch.micro == 2


@pytest.mark.parametrize(
    ("steps", "elastic", "compiles", "words"),
    [("500", False, True, "auto"), ("499", False, True, ""), ("500", True, True, ""),
     ("500", False, False, "")],
)  # fmt: skip
def test_a_long_run_on_a_gpu_tries_plans_where_none_is_named(
    steps, elastic, compiles, words, monkeypatch
):
    monkeypatch.setattr(automatic_plan, "can_compile", lambda device: compiles)
    recipe = read_recipe(None, [*TINY, "--train.steps", steps])
    assert words_where_none(recipe, [], elastic=elastic) == words


def test_a_plan_that_is_tried_where_none_is_named_is_the_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    opening = import_module("stepladder.job.open_job")  # a function has its name
    words = "auto tune=60 compile=off kernels=off bf16"
    monkeypatch.setattr(opening, "words_where_none", lambda recipe, training, elastic: words)
    for named, folder, precision in ((None, "a", "bf16"), ("fp32", "b", "fp32")):
        job.train(settings=[*TINY, "--run.folder", str(tmp_path / folder)], plan=named)
        assert plan_in(tmp_path / folder).precision.compute == precision
    assert "only one plan was left to try" in because(tmp_path / "a")[0]
