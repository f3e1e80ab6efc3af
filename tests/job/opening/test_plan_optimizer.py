"""A recipe whose plan names the optimizer trains with that one."""

import pytest

from stepladder import job
from stepladder.errors import PlanError
from stepladder.job.opening.plan_optimizer import take_plan_optimizer
from stepladder.plan import Optimizer, Plan, Recipe
from stepladder.plan.recipe import read_recipe
from tests.job.test_train_recipe import TINY

TEXTS = (
    "sgd",
    "momentum lr=0.1",
    "adamw",
    "adam lr=0.0003 betas=0.8,0.99 eps=1e-06 clip=none",
    "adamw lr=0.001 wd=0.2 clip=0.5 group=*.bias:wd=0 group=*head*:lr=x0.1,wd=0.3",
    "muon lr=0.03 adamw_lr=0.001 variant=normuon group=*head*:by=adamw",
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_plans_optimizer_is_the_recipes_exactly(text, tmp_path):
    wanted = Optimizer.parse(text)
    for named in (Recipe(), Recipe(plan={"precision": "fp32", "optimizer": text})):
        plan = None if named.plan else f"fp32 optimizer='{text}'"
        taken = take_plan_optimizer(named, plan)
        assert taken.optimizer_choice() == wanted
        file = tmp_path / "run.toml"
        file.write_text(taken.to_toml())
        assert read_recipe(file).optimizer_choice() == wanted
        assert take_plan_optimizer(taken, plan) == taken  # as at a restart


def test_a_plan_that_names_no_optimizer_leaves_the_recipes():
    recipe = Recipe(optimizer={"lr": 0.5})
    for plan in (None, "fp32", Plan.parse("bf16 zero3")):
        assert take_plan_optimizer(recipe, plan) is recipe


def test_two_optimizers_are_refused_in_one_line():
    recipe = Recipe(optimizer={"name": "sgd"})
    with pytest.raises(PlanError, match=r"^optimizer: the plan names 'adamw lr=0.1', and") as told:
        take_plan_optimizer(recipe, "fp32 optimizer='adamw lr=0.1'")
    assert "\n" not in str(told.value) and str(told.value).endswith("Name it in one of them.")


def test_a_run_trains_with_its_plans_optimizer(tmp_path):
    words = ["--train.steps", "2", "--train.batch", "4", "--run.folder"]
    losses = {}
    for name, settings, plan in (
        ("plan", [], "fp32 optimizer='sgd lr=0.5'"),
        ("recipe", ["--optimizer.name", "sgd", "--optimizer.lr", "0.5", "--optimizer.wd", "0",
                    "--optimizer.clip", "none"], "fp32"),
        ("neither", [], "fp32"),
    ):  # fmt: skip
        result = job.train(settings=[*TINY, *words, str(tmp_path / name), *settings], plan=plan)
        losses[name] = result.validation_loss
    assert losses["plan"] == losses["recipe"] != losses["neither"]
    assert 'name = "sgd"' in (tmp_path / "plan" / "run.toml").read_text()


def test_rates_are_scaled_with_the_batch_once(tmp_path):
    scaled = ["--train.steps", "2", "--train.scale_rate", "linear", "--train.reference_batch", "2"]
    folder = ["--run.folder", str(tmp_path / "run")]
    job.train(settings=[*TINY, *scaled, *folder], plan="fp32 optimizer='sgd lr=0.5'")
    assert "sgd lr=1.0" in (tmp_path / "run" / "plan.toml").read_text()
