"""FLOPs of a shape, held against numbers worked out by hand."""

from hypothesis import given
from hypothesis import strategies as st

from stepladder.workload.flops_per_token import shape_flops
from stepladder.workload.presets import PRESETS


def test_llama3_8b_costs_two_per_matrix_parameter():
    shape = PRESETS["llama3-8b"]
    norms = 65 * 4096
    matrices = (
        shape.parameters - norms - 128256 * 4096
    )  # the embedding is looked up, not multiplied
    assert shape_flops(shape, 8192).matrix == 2 * matrices


def test_attention_costs_two_matmuls_over_half_the_sequence():
    assert shape_flops(PRESETS["llama3-8b"], 8192).attention == 32 * (2 * 2 * 4096 * 4096)


def test_a_tied_head_is_still_multiplied():
    assert shape_flops(PRESETS["gpt-tiny"], 2).matrix == 2 * (4 * 12 * 128 * 128 + 256 * 128)


@given(st.sampled_from(sorted(PRESETS)), st.integers(1, 10_000))
def test_training_is_three_forwards_and_only_attention_grows_with_the_sequence(name, sequence):
    flops, twice = (shape_flops(PRESETS[name], n) for n in (sequence, 2 * sequence))
    assert flops.training == 3 * (flops.matrix + flops.attention)
    assert (twice.matrix, twice.attention) == (flops.matrix, 2 * flops.attention)
