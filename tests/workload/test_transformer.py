import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.workload import Shape, facts_of_shape, find_facts, find_shape
from stepladder.workload.flops_per_token import shape_flops
from stepladder.workload.presets import PRESETS

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


mixtures = st.builds(
    Shape,
    family=st.just("llama"),
    layers=st.integers(5, 9),
    hidden=st.sampled_from([64, 128]),
    heads=st.just(4),
    kv_heads=st.sampled_from([2, 4]),
    ffn=st.integers(64, 512),
    vocab=st.integers(16, 4096),
    sequence=st.sampled_from([16, 128]),
    experts=st.integers(2, 64),
    active=st.integers(1, 2),
    expert_ffn=st.integers(0, 512),
    shared_ffn=st.integers(0, 512),
    dense=st.integers(0, 2),
    every=st.integers(0, 2),
    extra=st.integers(0, 99),
)


@given(mixtures)
def test_blocks_with_experts_stand_where_the_shape_has_them(shape: Shape) -> None:
    blocks = facts_of_shape(shape).blocks
    placed = [any(m.experts > 1 for m in block.matmuls) for block in blocks]
    assert placed == [shape.is_sparse(layer) for layer in range(shape.layers)]


@given(st.one_of(shapes, mixtures))
def test_parameters_are_those_of_the_shape(shape: Shape) -> None:
    assert facts_of_shape(shape).parameters == shape.parameters


@given(st.one_of(shapes, mixtures), st.integers(1, 512))
def test_flops_are_those_of_the_closed_form(shape: Shape, length: int) -> None:
    facts = facts_of_shape(shape, length)
    counted = shape_flops(shape, length)
    assert facts.flops_per_token == pytest.approx(counted.training, rel=1e-9, abs=4 * shape.layers)


def test_an_eager_gpt_block_keeps_sixteen_widths() -> None:
    shape = PRESETS["gpt2"]
    block = facts_of_shape(shape, 1024).parts[1]
    assert block.eager.work + block.eager.residual == 1024 * 16 * shape.hidden


def test_fusing_and_selecting_keep_less_than_eager() -> None:
    for name in ("gpt2", "llama3-8b"):
        block = find_facts(name).parts[1]
        eager, compiled = block.eager.num_bytes(2, 4), block.compiled.num_bytes(2, 4)
        assert block.output * 4 < compiled < eager
        assert block.output * 4 < block.selective.num_bytes(2, 4) < compiled


@pytest.mark.parametrize("sequence", [0, -5])
def test_no_length_is_refused(sequence) -> None:
    with pytest.raises(PlanError, match=f"sequence: {sequence} is not a length"):
        facts_of_shape(find_shape("gpt2"), sequence)
