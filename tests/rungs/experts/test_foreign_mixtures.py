"""Mixtures of transformers as they are, with their experts on several ranks."""

import pytest
import torch
from torch.distributed.tensor import DTensor

from stepladder.errors import StepladderError
from stepladder.rungs.experts.foreign_mixtures import stacked_experts
from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after

STEPS, ROWS, LENGTH, VOCAB = 2, 8, 8, 64
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16,
    "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
MORE = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                  "head_dim": 8},
    "deepseek_v3": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 8, "num_key_value_heads": 4,
    },
}  # fmt: skip


def model(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **MORE[kind]}))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return made


def batch(step):
    tokens = torch.randint(0, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step))
    return {"input_ids": tokens, "labels": tokens}


def plain(kind):
    module, losses = model(kind), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    for step in range(STEPS):
        loss = module(**batch(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {name: value.detach() for name, value in module.named_parameters()}, losses


def planned(kind, plan):
    torch.set_num_threads(1)
    trained = climb(model(kind), optimizer="sgd lr=0.3", plan=plan, device="cpu")
    losses = [trained.step(batch(step), rows="global").loss for step in range(STEPS)]
    found = {}
    for name, parameter in trained.module.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        found[name.removeprefix("module.")] = whole.detach().clone()
    return found, losses


CASES = [
    ("deepseek_v3", 2, "fp32 experts=2"),
    ("qwen3_moe", 4, "fp32 zero3 shard=2 experts=2"),
    ("mixtral", 2, "fp32 experts=2"),
    ("mixtral", 4, "fp32 zero1 shard=2 experts=2"),
    ("olmoe", 2, "fp32 zero3 shard=1 experts=2 micro=2"),
    ("olmoe", 4, "fp32 ddp experts=2"),
    ("deepseek_v3", 4, "fp32 zero3 shard=2 experts=2"),
    ("qwen3_moe", 4, "fp32 experts=4"),
    ("qwen3_moe", 4, "fp32 experts=2 tensor=2"),
    ("mixtral", 4, "fp32 zero3 shard=1 experts=2 tensor=2"),
]


@pytest.mark.parametrize(("kind", "ranks", "plan"), soak_after(CASES, gate=1))
def test_it_learns_what_it_learns_on_one_device(kind, ranks, plan):
    values, losses = plain(kind)
    for found, seen in run(planned, ranks, kind, plan):
        assert seen == pytest.approx(losses, rel=1e-5)
        assert found.keys() <= values.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, values[name], rtol=1e-4, atol=2e-6, msg=name)


class Called(torch.nn.Module):
    """Not given the experts that are chosen: it chooses itself."""

    def __init__(self):
        super().__init__()
        self.num_experts = 4
        self.stacked = torch.nn.Parameter(torch.zeros(4, 8, 8))

    def forward(self, hidden):
        return hidden


def test_only_modules_that_are_given_the_choice_can_be_spread():
    found = stacked_experts(model("mixtral"))
    assert [(name, count) for name, _, count in found] == [
        ("model.layers.0.mlp.experts", 8), ("model.layers.1.mlp.experts", 8),
    ]  # fmt: skip
    assert stacked_experts(torch.nn.Sequential(Called())) == []


def cut_olmoe():
    try:
        planned("olmoe", "fp32 tensor=2")
    except StepladderError as refused:
        return str(refused).splitlines()[0]


@pytest.mark.soak
def test_olmoe_is_not_cut_and_the_reason_is_named():
    said = (
        "OlmoeForCausalLM: its blocks (OlmoeDecoderLayer) show no pair of linears that can be cut: "
        "'self_attn' normalises queries over all heads, which no rank would have. Use shard or "
        "pipeline, or give it an `anatomy` that names its cuts."
    )
    assert run(cut_olmoe, 2) == [said] * 2
