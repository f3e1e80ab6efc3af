"""A plan on the ranks there are."""

from stepladder.job.opening.plan_for_ranks import facts_to_share, fit_ranks
from stepladder.plan import Layout, Plan, Recipe, read_recipe


def test_every_setting_but_the_folder_must_be_the_same_on_all_ranks():
    facts = facts_to_share(read_recipe(None, ["--run.folder", "here", "--optimizer.lr", "1"]), None)
    assert facts["plan"] == "auto" and facts["optimizer.lr"] == "1"
    assert "run.folder" not in facts and facts["run.timeout_seconds"] == "600"


def test_a_plan_is_fitted_to_the_ranks_only_where_they_may_change():
    plan, recipe = Plan.parse("fp32 tensor=2"), Recipe()
    assert fit_ranks(plan, recipe, 1, elastic=False) == (plan, "")
    assert fit_ranks(None, recipe, 1, elastic=True) == (None, "")
    fitted, said = fit_ranks(plan, recipe, 1, elastic=True)
    assert fitted.layout == Layout() and fitted.batch.sequences == recipe.train.batch
    assert said == "plan refitted to 1 rank: tensor 2 to 1; the global batch stays 16"
