import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.rungs import BlockCost
from stepladder.rungs.memory.recompute_budget import GIB, deepen, fit_budget, held_bytes, round_up

SIZES = st.integers(1, 1000)
COSTS = st.lists(
    st.tuples(SIZES, SIZES, SIZES).map(lambda sizes: BlockCost(*sizes)),
    min_size=1,
    max_size=8,
)


def test_while_backward_works_on_a_block_it_stands_whole_and_those_after_it_are_gone():
    costs = [BlockCost(100, 40, 10)] * 3
    assert held_bytes(costs, ["kept"] * 3) == 300
    assert held_bytes(costs, ["whole"] * 3) == 10 + 10 + 100
    assert held_bytes(costs, ["whole", "whole", "kept"]) == 120  # the last costs nothing to keep
    assert held_bytes(costs, ["cheap", "kept", "kept"]) == 240


def test_a_budget_takes_the_cheap_before_the_whole_and_the_front_before_the_back():
    costs = [BlockCost(100, 40, 10)] * 3
    assert fit_budget(costs, 300) == ["kept", "kept", "kept"]
    assert fit_budget(costs, 299) == ["cheap", "kept", "kept"]
    assert fit_budget(costs, 180) == ["cheap", "cheap", "kept"]
    assert fit_budget(costs, 150) == ["whole", "cheap", "cheap"]
    assert fit_budget(costs, 120) == ["whole", "whole", "cheap"]


def test_a_block_that_would_keep_more_when_it_is_selective_is_kept():
    costs = [BlockCost(100, 120, 10), BlockCost(100, 40, 10), BlockCost(100, 40, 10)]
    assert fit_budget(costs, 240) == ["kept", "cheap", "kept"]


def test_a_budget_below_the_least_names_the_least():
    costs = [BlockCost(GIB, GIB // 2, GIB // 10)] * 3
    with pytest.raises(PlanError) as refused:
        fit_budget(costs, GIB)
    assert str(refused.value) == (
        "recompute: 3 blocks hold 1.2 GiB even with every block recomputed, and the budget is "
        "1 GiB. Give them 1.2GiB, or halve micro."
    )


@given(COSTS, st.integers(1, 10_000))
def test_what_is_chosen_fits_and_nothing_shallower_does(costs, budget):
    deeper = [["kept"] * len(costs), *deepen(len(costs))]
    shallower = [[c.worth(d) for c, d in zip(costs, depths)] for depths in deeper]
    least = min(held_bytes(costs, depths) for depths in shallower)
    if least > budget:
        with pytest.raises(PlanError, match="even with every block recomputed"):
            fit_budget(costs, budget)
        return
    chosen = fit_budget(costs, budget)
    assert held_bytes(costs, chosen) <= budget
    before = shallower[: shallower.index(chosen)]
    assert all(held_bytes(costs, depths) > budget for depths in before)


@given(st.integers(1, 2**50))
def test_the_remedy_is_enough_and_not_a_hundredth_too_much(num_bytes):
    size = round_up(num_bytes)
    assert round(size * GIB) >= num_bytes - 1 and (size - 0.0101) * GIB < num_bytes


def test_a_larger_micro_batch_costs_in_proportion():
    assert BlockCost(3, 2, 1).times(4) == BlockCost(12, 8, 4)
