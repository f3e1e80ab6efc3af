import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.workload import PRESETS, Shape, facts_of_shape, find_facts, find_shape
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
