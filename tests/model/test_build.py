"""The built-in models by name."""

import time

import pytest
import torch

from stepladder.errors import PlanError
from stepladder.model import build
from stepladder.model.build import OTHER_MODELS
from stepladder.model.builtin.gpt import GPT
from stepladder.model.builtin.llama import Llama
from stepladder.model.builtin.mlp import MLP
from stepladder.model.builtin.resnet import ResNet
from stepladder.model.builtin.vit import ViT
from stepladder.model.huggingface.tensor_names import huggingface_tensors
from stepladder.workload import find_shape
from stepladder.workload.presets import PRESETS

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("gpt-tiny", GPT),
        ("llama:layers=1,hidden=32,heads=2", Llama),
        (PRESETS["llama-tiny"], Llama),
        ("mlp-tiny", MLP),
        ("resnet-tiny", ResNet),
        ("vit-small", ViT),
    ],
)
def test_a_name_a_text_or_a_shape_is_enough(model, kind):
    assert isinstance(build(model, device="meta"), kind)


def test_it_lives_where_asked_with_values():
    assert build("gpt-tiny", device="meta").head.weight.is_meta
    assert build("gpt-tiny").head.weight.device.type == "cpu"
    with torch.device("meta"):
        assert build("gpt-tiny").head.weight.is_meta


def test_the_seed_decides_the_values():
    first, same, other = (build("llama-tiny", seed=seed).head.weight for seed in (1, 1, 2))
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_the_sequence_sets_the_positions():
    assert build("gpt-tiny", device="meta", sequence=99).position.num_embeddings == 99
    assert build("llama-tiny", device="meta", sequence=99).blocks[0].attention.rotary.sequence == 99


@pytest.mark.soak
def test_405_billion_parameters_are_laid_out_in_seconds():
    build("llama-tiny", device="meta")  # the first module on meta loads torch's decompositions
    start = time.process_time()
    build("llama3-405b", device="meta")
    assert time.process_time() - start < 3


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(PlanError) as caught:
        build("resnet5")
    assert str(caught.value) == "model: 'resnet5' is not a known model. Did you mean 'resnet50'?"


@pytest.mark.parametrize(
    ("model", "option", "value", "problem"),
    [
        ("resnet18", "clases", 10, "is not an option of ResNet. Did you mean 'classes'?"),
        (
            "llama-tiny",
            "dropout",
            0.1,
            "is not an option of Llama. Choose one of: theta, balance, z_loss, capacity.",
        ),
        ("vit-tiny", "sequence", 8, "vit-tiny reads no sequence. Leave it out."),
    ],
)
def test_an_option_a_model_does_not_have_is_refused(model, option, value, problem):
    with pytest.raises(PlanError) as caught:
        build(model, device="meta", **{option: value})
    assert str(caught.value) == f"model.{option}: {problem}"


def test_no_two_models_share_a_name():
    assert not set(PRESETS) & set(OTHER_MODELS)


def test_heads_that_no_built_in_model_has_are_refused() -> None:
    with pytest.raises(PlanError, match="model.head: 32 a head is not hidden over heads"):
        build("gpt:layers=2,hidden=64,heads=4,head=32", device="meta")


def test_what_only_the_planner_counts_is_not_built() -> None:
    said = "model.extra: 64 parameters of a block .* are in no built-in model"
    with pytest.raises(PlanError, match=said):
        build("llama:extra=64", device="meta")
    with pytest.raises(PlanError, match=said):
        huggingface_tensors(find_shape("llama:extra=64"))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("qwen3-moe-tiny", "model.experts: an MLP beside the experts is in no mixture that has"),
        (
            "llama:experts=4,active=2,raw=1",
            "model.experts: weights of experts as the router gave them without norms of queries",
        ),
        ("llama:head=32", "model.extra: norms of queries and keys, or heads of another width"),
    ],
)
def test_a_model_whose_tensors_have_no_names_there_is_not_converted(model, said) -> None:
    with pytest.raises(PlanError, match=said):
        huggingface_tensors(find_shape(model))
