"""LoRA in words: what is trained, and words that do not suit."""

import sys

import pytest
from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.model.huggingface.lora import add_lora

peft = pytest.importorskip("peft", reason="needs the package peft")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")


def llama():
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    return transformers.LlamaForCausalLM(config)


def trained(module):
    return {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}


def test_only_the_matrices_beside_the_named_linears_are_trained():
    module = add_lora(llama(), "r=4 alpha=8 matrices=q_proj,down_proj")
    assert sum(trained(module).values()) == 4 * (32 + 32) + 4 * (64 + 32)
    assert type(module).__name__ == "PeftModelForCausalLM"
    assert len(trained(add_lora(llama(), "r=2"))) == 14  # two beside each linear of a block


def test_the_seed_decides_their_first_values():
    one, again, other = (add_lora(llama(), "r=2", seed=seed) for seed in (1, 1, 2))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    values = [module.get_parameter(name) for module in (one, again, other)]
    assert values[0].equal(values[1]) and not values[0].equal(values[2])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rank=4", "model.lora: 'rank' is not a setting. Choose one of: r, alpha, dropout, matric"),
        ("r=many", "'r=many' gives no r"),
        ("r=0", "'r=0' gives no r"),
        ("r=8 alpha=-1", "'alpha=-1' gives no alpha"),
        ("matrices=nowhere", "'matrices=nowhere' does not suit LlamaForCausalLM"),
    ],
)
def test_words_that_do_not_suit_are_refused(text, said):
    with pytest.raises(PlanError) as wrong:
        add_lora(llama(), text)
    assert said in str(wrong.value)


def test_without_peft_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match="LoRA needs the package 'peft'"):
        add_lora(nn.Linear(2, 2), "r=2")
