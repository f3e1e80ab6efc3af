import json

import pytest

from stepladder.errors import PlanError
from stepladder.workload import find_facts, find_shape
from stepladder.workload.config import read_config


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


def test_a_config_that_is_no_table_says_so(tmp_path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(PlanError, match="holds no table of settings"):
        read_config(tmp_path / "config.json")


def test_a_missing_config_says_so() -> None:
    with pytest.raises(PlanError, match=r"nowhere/config.json cannot be read"):
        find_facts("nowhere/config.json")
