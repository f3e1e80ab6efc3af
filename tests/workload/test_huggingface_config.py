import json

import pytest

from stepladder.errors import PlanError
from stepladder.workload import facts_of_shape, find_facts, find_shape, shape_of_config
from stepladder.workload.flops_per_token import shape_flops
from stepladder.workload.huggingface_config import read_config
from stepladder.workload.shape import parse_shape


def test_a_hugging_face_config_is_read(tmp_path) -> None:
    llama = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    (tmp_path / "config.json").write_text(json.dumps(llama))
    assert read_config(tmp_path / "config.json") == find_shape("llama3-8b")
    assert find_facts(str(tmp_path)).parameters == find_shape("llama3-8b").parameters


def test_a_gpt2_config_is_read(tmp_path) -> None:
    table = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50304}
    (tmp_path / "config.json").write_text(json.dumps(table))
    assert read_config(tmp_path / "config.json") == find_shape("gpt2")


def test_a_config_that_lacks_numbers_names_them(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "hidden_size": 64}')
    with pytest.raises(PlanError, match="the config of mamba has no num_hidden_layers"):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_key_value_heads", "8"), ("head_dim", -1), ("num_experts", 1.5), ("vocab_size", [1])],
)
def test_a_setting_that_is_no_number_is_named(name, value) -> None:
    with pytest.raises(PlanError, match=f"has {name}=.*, which counts nothing"):
        shape_of_config({**LLAMA, name: value})


def test_a_config_that_is_no_table_says_so(tmp_path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(PlanError, match="holds no table of settings"):
        read_config(tmp_path / "config.json")


def test_a_missing_config_says_so() -> None:
    with pytest.raises(PlanError, match=r"nowhere/config.json cannot be read"):
        find_facts("nowhere/config.json")


LLAMA = {
    "num_hidden_layers": 28,
    "hidden_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 24576,
    "vocab_size": 256000,
    "tie_word_embeddings": True,
}


def test_heads_wider_than_the_stream_divided_are_read() -> None:
    shape = shape_of_config({**LLAMA, "model_type": "gemma", "head_dim": 256})
    assert shape.parameters == pytest.approx(8.54e9, rel=0.001), "as Gemma 7B's card says"
    assert parse_shape(str(shape)) == shape
    facts = facts_of_shape(shape, 8192)
    assert facts.parameters == shape.parameters
    assert facts.flops_per_token == pytest.approx(shape_flops(shape, 8192).training)
    usual = shape_of_config({**LLAMA, "head_dim": 192})
    assert usual.head == 0 and "head=" not in str(usual)


def test_an_ungated_model_has_two_matrices() -> None:
    neox = {**LLAMA, "model_type": "gpt_neox", "tie_word_embeddings": False}
    assert not shape_of_config(neox).gated


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model_type": "jamba", "num_experts": 16}, "jamba has 16 experts, and only those of mix"),
        (
            {"model_type": "deepseek_v3", "n_routed_experts": 256, "kv_lora_rank": 512},
            r"deepseek_v3 attends by latent keys \(kv_lora_rank=512\)",
        ),
        ({"model_type": "bert"}, "a bert is not one row of decoder blocks"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "a t5 is not one row"),
    ],
)
def test_what_no_shape_can_say_is_refused(more, said) -> None:
    with pytest.raises(PlanError, match=said) as refused:
        shape_of_config({**LLAMA, **more})
    assert "sl.describe(module" in str(refused.value)
