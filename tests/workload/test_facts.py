"""Facts are counts, so most of these tests are equalities."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.workload import (
    PRESETS,
    Attention,
    Kept,
    Matrix,
    Shape,
    facts_of_shape,
    find_facts,
    find_shape,
    read_config,
)
from stepladder.workload.flops import shape_flops

shapes = st.builds(
    Shape,
    family=st.sampled_from(["llama", "gpt"]),
    layers=st.integers(1, 8),
    hidden=st.sampled_from([64, 128, 256]),
    heads=st.sampled_from([4, 8]),
    kv_heads=st.sampled_from([2, 4]),
    ffn=st.integers(64, 1024),
    vocab=st.integers(16, 4096),
    sequence=st.sampled_from([16, 128]),
    tied=st.booleans(),
)


@given(shapes)
def test_parameters_are_those_of_the_shape(shape: Shape) -> None:
    assert facts_of_shape(shape).parameters == shape.parameters


@given(shapes, st.integers(1, 512))
def test_flops_are_those_of_the_closed_form(shape: Shape, length: int) -> None:
    facts = facts_of_shape(shape, length)
    counted = shape_flops(shape, length)
    assert facts.flops_per_token == pytest.approx(counted.training, rel=1e-9, abs=4 * shape.layers)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_facts(name: str) -> None:
    facts = find_facts(name)
    assert facts.num_blocks == PRESETS[name].layers == len(facts.blocks)


def test_a_causal_mask_halves_attention() -> None:
    assert Attention(8, 8, 64, 128).flops * 2 == Attention(8, 8, 64, 128, causal=False).flops


def test_a_product_counts_two_for_each_multiply_add() -> None:
    assert Matrix(3, 5, 7).flops == 2 * 3 * 5 * 7


def test_kept_bytes_add_each_type_in_its_width() -> None:
    kept = Kept(work=10, residual=4, cast=2, single=3, other_bytes=1)
    assert kept.num_bytes(2, 2) == 20 + 8 + 12 + 1
    assert kept.num_bytes(2, 4) == (10 + 2) * 2 + 16 + 12 + 1, "autocast makes further copies"


def test_an_eager_gpt_block_keeps_sixteen_widths() -> None:
    shape = PRESETS["gpt2"]
    block = facts_of_shape(shape, 1024).parts[1]
    assert block.eager.work + block.eager.residual == 1024 * 16 * shape.hidden


def test_fusing_and_selecting_keep_less_than_eager() -> None:
    for name in ("gpt2", "llama3-8b"):
        block = find_facts(name).parts[1]
        eager, compiled = block.eager.num_bytes(2, 2), block.compiled.num_bytes(2, 2)
        assert block.output * 2 < compiled < eager
        assert block.output * 2 < block.selective.num_bytes(2, 2) < eager


def test_resnet50_has_its_published_size_and_work() -> None:
    facts = find_facts("resnet50")
    assert facts.parameters == 25_557_032
    assert facts.flops_per_sample / 3 / 2 == pytest.approx(4.09e9, rel=0.01), "multiply-adds"


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


def test_an_unknown_model_offers_the_nearest_name() -> None:
    with pytest.raises(
        PlanError, match="'llama3-8' is not a known model. Did you mean 'llama3-8b'"
    ):
        find_facts("llama3-8")


def test_a_sequence_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="0 is not a length"):
        find_facts("gpt2", 0)
