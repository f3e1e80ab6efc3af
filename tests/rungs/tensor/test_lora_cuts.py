"""Adapters and the tensor axis: what is found and what refused; tests/parity shows it computes."""

from functools import cache

import pytest
from torch import nn

from stepladder.errors import ModelError
from stepladder.loss import make_loss
from stepladder.model import describe, find_anatomy
from stepladder.plan import Plan
from stepladder.planner import forecast_state
from stepladder.rungs.tensor.lora_cuts import check_adapters, cut_narrowing
from stepladder.rungs.tensor.tensor_parallel import is_sliced_between
from tests.soak import soak_after

peft = pytest.importorskip("peft", reason="needs the package peft")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")


def llama(tied=False, **settings):
    config = transformers.LlamaConfig(
        tie_word_embeddings=tied,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
    )
    model = transformers.LlamaForCausalLM(config)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, **settings))


@cache
def facts_of(tied):
    return describe(llama(tied, target_modules=["q_proj", "o_proj"]), sequence=16)


def test_the_declared_cuts_are_found_through_the_adapters():
    plain = find_anatomy(llama(target_modules=["gate_proj"]).get_base_model())
    found = find_anatomy(llama(target_modules=["q_proj", "o_proj"]))
    assert dict(found.cuts) == dict(plain.cuts) and not found.guessed
    assert found.blocks == tuple(f"base_model.model.{name}" for name in plain.blocks)
    assert found.head == "base_model.model.lm_head"


def test_the_stream_is_still_sliced_between_cuts():
    module = llama(target_modules=["q_proj", "o_proj"])
    found = find_anatomy(module)
    assert is_sliced_between(found, found.blocks_of(module))


def test_labels_are_shifted_by_the_model_inside_whatever_it_is_wrapped_in():
    module = llama(target_modules=["q_proj"])
    assert type(module).__name__ == "PeftModel" and make_loss(None, module).shifted


def test_a_head_with_adapters_is_not_taken_for_a_plain_linear():
    found = find_anatomy(llama(target_modules=["lm_head"]))
    assert found.head is None


def test_frozen_weights_are_forecast_as_such():
    facts = facts_of(True)
    block = facts.parts[1]
    trained = block.parameters - block.frozen_parameters
    assert trained == 2 * (4 * 32 + 32 * 4)
    assert facts.parts[-1].frozen_parameters == facts.parts[-1].parameters


@pytest.mark.parametrize("tied", soak_after([True, False]))
@pytest.mark.parametrize(("plan", "ways"), soak_after([("fp32 tensor=2", 2), ("fp32", 1)]))
def test_only_what_is_trained_has_a_gradient_and_of_it_each_ranks_part(plan, ways, tied):
    (state,) = forecast_state(facts_of(tied), Plan.parse(f"{plan} micro=1").settle(ways))
    held_whole, cut = 4 * 32 + 32 * 4, 32 * 4 + 4 * 32  # q's narrowing, o's widening; the others
    assert state.gradients == 4 * 2 * (held_whole + cut // ways)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"target_modules": ["q_proj"], "use_dora": True}, r"adapters \(Dora.*\) read whole matri"),
        ({"target_modules": ["embed_tokens"]}, "is an embedding with adapters, which cannot be"),
    ],
)
def test_what_does_more_than_add_a_product_is_refused(settings, said):
    with pytest.raises(ModelError, match=said):
        check_adapters(llama(**settings))
    check_adapters(llama(target_modules=["q_proj"]))
    check_adapters(nn.Linear(2, 2))


def test_a_bias_that_every_rank_would_add_is_refused():
    layer = llama(target_modules=["o_proj"], lora_bias=True).get_submodule(
        "base_model.model.model.layers.0.self_attn.o_proj"
    )
    with pytest.raises(ModelError, match="its adapters have a bias, which every rank would add"):
        cut_narrowing("o_proj", layer, None, None, sliced=False)
