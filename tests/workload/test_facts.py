"""Facts are counts, so these tests are equalities."""

from stepladder.workload import Attention, ElementsByType, MatmulFacts


def test_a_causal_mask_halves_attention() -> None:
    assert Attention(8, 8, 64, 128).flops * 2 == Attention(8, 8, 64, 128, causal=False).flops


def test_a_matmul_counts_two_flops_for_each_multiply_add() -> None:
    assert MatmulFacts(3, 5, 7).flops == 2 * 3 * 5 * 7


def test_kept_bytes_add_each_type_in_its_width() -> None:
    kept = ElementsByType(work=10, residual=4, cast=2, single=3, other_bytes=1)
    assert kept.num_bytes(2, 2) == 20 + 8 + 12 + 1
    assert kept.num_bytes(2, 4) == (10 + 2) * 2 + 16 + 12 + 1, "autocast makes further copies"
