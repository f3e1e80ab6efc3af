"""A recipe as the subject of a proof."""

from stepladder.job.recipe_subject import (
    make_from_recipe,
    subject_of_recipe,
    training_settings,
    with_recipe_batch,
)
from stepladder.plan import Plan, Recipe, read_recipe

WORDS = ["--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "16"]


def test_each_process_makes_the_recipes_model_and_data_anew():
    recipe = read_recipe(None, WORDS)
    one, samples, loss = make_from_recipe(recipe)
    other, *_ = make_from_recipe(recipe)
    assert one is not other and loss == "cross_entropy" and len(samples) > 0
    assert all((a == b).all() for a, b in zip(one.parameters(), other.parameters()))
    assert subject_of_recipe(recipe).name == recipe.model.name


def test_it_trains_as_the_recipe_says():
    found = training_settings(read_recipe(None, ["--optimizer.lr", "0.5", "--data.seed", "7"]))
    assert found["optimizer"].lr == 0.5 and found["data_seed"] == 7


def test_a_plan_takes_the_recipes_batch_unless_it_names_one():
    assert with_recipe_batch(Plan(), Recipe()).batch.sequences == Recipe().train.batch
    assert with_recipe_batch(Plan.parse("batch=3"), Recipe()).batch.sequences == 3
