import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.plan import Recompute
from stepladder.planner.memory.recompute_depths import RecomputeShares, recompute_shares

BLOCK = (100.0, 60.0, 10.0)  # bytes kept, cheap, whole


def test_each_rule_has_its_depth() -> None:
    assert recompute_shares(Recompute(), 8, *BLOCK) == RecomputeShares(1, 0, 0)
    assert recompute_shares(Recompute("blocks"), 8, *BLOCK) == RecomputeShares(0, 0, 1)
    assert recompute_shares(Recompute("selective"), 8, *BLOCK) == RecomputeShares(0, 1, 0)
    assert recompute_shares(Recompute("every", every=3), 8, *BLOCK) == RecomputeShares(
        1 - 3 / 8, 0, 3 / 8
    )


@given(st.integers(110, 1200))
def test_a_budget_is_met_and_used(budget: int) -> None:
    depths = recompute_shares(Recompute("budget", budget_bytes=budget), 9, *BLOCK)
    held = depths.mean_bytes(*BLOCK) * 8 + BLOCK[0]
    assert depths.kept + depths.cheap + depths.whole == pytest.approx(1)
    assert held <= max(budget, 8 * 10 + 100) + 1e-6
    assert depths.kept == 1 or depths.whole == 1 or held == pytest.approx(budget)


def test_blocks_become_cheap_before_any_becomes_whole() -> None:
    loose = recompute_shares(Recompute("budget", budget_bytes=100 + 8 * 70), 9, *BLOCK)
    tight = recompute_shares(Recompute("budget", budget_bytes=100 + 8 * 30), 9, *BLOCK)
    assert loose.whole == 0 and loose.cheap > 0
    assert tight.kept == 0 and tight.whole > 0


def test_a_depth_never_keeps_more_than_all() -> None:
    assert RecomputeShares(0, 1, 0).mean_bytes(50, 60, 10) == 50
