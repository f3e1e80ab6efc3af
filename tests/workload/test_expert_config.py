"""Configs with experts count as the modules that transformers builds of them."""

import pytest
import torch

from stepladder.errors import PlanError
from stepladder.model import count_flops
from stepladder.workload import find_shape, shape_of_config
from stepladder.workload.flops_per_token import shape_flops

BASE = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 128, "max_position_embeddings": 64, "intermediate_size": 96,
    "num_experts_per_tok": 2,
}  # fmt: skip
INSIDE = {"moe_intermediate_size": 32}
SHARED = {"n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1, **INSIDE}
CONFIGS = {
    "Mixtral": {"num_local_experts": 8},
    "GraniteMoe": {"num_local_experts": 8, "tie_word_embeddings": True},
    "Olmoe": {"num_experts": 8, "attention_bias": True, "pad_token_id": 0, "eos_token_id": 0},
    "Qwen2Moe": {"num_experts": 8, "shared_expert_intermediate_size": 48, **INSIDE},
    "Qwen3Moe": {
        "num_experts": 8, "head_dim": 32, "mlp_only_layers": [0, 1], "decoder_sparse_step": 2,
        **INSIDE,
    },
    "Glm4Moe": {"head_dim": 32, "use_qk_norm": True, "attention_bias": True, **SHARED},
    "Dots1": SHARED,
    # Without experts, and with parameters that a Llama does not have.
    "Qwen2": {}, "Qwen3": {"head_dim": 32}, "Olmo2": {},
}  # fmt: skip


def config_of(name):
    transformers = pytest.importorskip("transformers", reason="their modules are the measure")
    config = getattr(transformers, f"{name}Config")(**BASE, **CONFIGS[name])
    with torch.device("meta"):
        module = getattr(transformers, f"{name}ForCausalLM")(config)
    return config.to_dict(), module


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_module(name):
    table, module = config_of(name)
    assert shape_of_config(table).parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", list(CONFIGS)[:-3])
def test_flops_are_those_of_the_module(name):
    table, module = config_of(name)
    tokens = torch.zeros(1, 64, dtype=torch.long, device="meta")
    forward = count_flops(module, {"input_ids": tokens}).forward
    assert 64 * shape_flops(shape_of_config(table), 64).forward == pytest.approx(forward, rel=0.01)


def test_a_published_config_is_the_preset():
    table = {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False,
        "attention_bias": False,
    }  # fmt: skip
    assert shape_of_config(table) == find_shape("qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"num_experts_per_tok": None}, "mixtral has 8 experts and no num_experts_per_tok"),
        ({"num_experts_per_tok": 9}, "a token cannot go to 9 of 8 experts"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [2]}, "by a list of their numbers"),
        ({"model_type": "dots1", "moe_layer_freq": 2}, "by a list of their numbers"),
        ({"model_type": "llama4_text"}, "llama4_text has 8 experts, and only those of mixtral"),
        ({"model_type": "gpt_oss"}, "gpt_oss has 8 experts, and only those of mixtral"),
        (
            {"model_type": "qwen2_moe", "mlp_only_layers": [0]},
            "a gate beside experts and 1 layers without any",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused(more, said):
    with pytest.raises(PlanError, match=said):
        shape_of_config({"model_type": "mixtral", **BASE, "num_local_experts": 8, **more})


def test_one_expert_is_an_mlp():
    one = {"model_type": "mixtral", **BASE, "num_local_experts": 1}
    assert not shape_of_config(one).experts
