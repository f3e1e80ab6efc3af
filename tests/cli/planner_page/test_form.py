"""From fields to commands, which mean the same."""

import shlex

import pytest

from stepladder.cli.planner_page.form import PlannerForm, cluster_fields, plan_fields
from stepladder.errors import PlanError, StepladderError
from stepladder.hardware import Cluster
from stepladder.model import build
from stepladder.plan import Plan, read_recipe
from stepladder.workload.presets import PRESETS

PLANS = [
    "bf16 ddp batch=64 accumulate=2",
    "fp8 zero3 replicate=2 tensor=2 batch=16 accumulate=4 recompute=selective compile=on",
    "bf16 zero1 pipeline=4 batch=64 accumulate=32 schedule=interleaved:2 kernels=on",
    "bf16-pure zero2 context=2 batch=8 accumulate=2 offload=optimizer",
]


@pytest.mark.parametrize("text", PLANS)
def test_a_plan_goes_into_the_fields_and_comes_out_the_same(text):
    plan = Plan.parse(text).settle(8)
    form = PlannerForm.read(plan_fields(plan))
    assert Plan.parse(form.plan_text).settle(8) == plan


def test_a_cluster_goes_into_the_fields_and_comes_out_the_same():
    text = "4 nodes x 8 A100-80GB, 400 Gb/s per GPU, 2048 GiB host"
    assert Cluster.parse(PlannerForm.read(cluster_fields(text)).cluster_text) == Cluster.parse(text)


def test_numbers_of_ones_own_are_a_shape():
    given = {"model": "own", "family": "gpt", "layers": "2", "hidden": "64", "heads": "4"}
    form = PlannerForm.read({**given, "kv_heads": "4", "ffn": "256", "sequence": "128"})
    assert form.model_text == (
        "gpt:layers=2,hidden=64,heads=4,kv_heads=4,ffn=256,vocab=128256,sequence=128"
    )


def test_an_unknown_field_is_refused():
    with pytest.raises(PlanError, match="tensr: is not a field of the page.*'tensor'"):
        PlannerForm.read({"tensr": "2"})


@pytest.mark.parametrize("name", [*PRESETS, "resnet50", "resnet101"])
def test_only_what_can_be_built_has_a_command_that_trains(name):
    try:
        build(name, device="meta")
        built = True
    except StepladderError:
        built = False
    assert bool(PlannerForm(model=name).train_command()) == built


def test_the_training_command_is_a_recipe_with_the_forms_plan():
    form = PlannerForm(model="gpt2", nodes="4", sequence="512")
    _, command, model, *words = shlex.split(form.train_command())
    assert command == "train" and words[:4] == ["--ranks", "8", "--nodes", "4:4"]
    recipe = read_recipe(model, words[words.index("--model.sequence") :])
    assert (recipe.model.name, recipe.model.sequence) == ("gpt2", 512)
    assert words[words.index("--plan") + 1] == form.plan_text
