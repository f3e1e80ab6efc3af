"""Stages hold all blocks in order, none is empty, and the balanced split is the best there is."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from stepladder.plan.stage_split import balance_blocks, split_blocks


@st.composite
def blocks_and_stages(draw):
    num_blocks = draw(st.integers(1, 60))
    return num_blocks, draw(st.integers(1, num_blocks))


def assert_partition(stages, num_blocks, num_stages):
    assert len(stages) == num_stages
    assert [block for stage in stages for block in stage] == list(range(num_blocks))
    assert all(stages)


@given(blocks_and_stages())
def test_a_split_holds_every_block_once_and_no_stage_is_empty(case):
    num_blocks, num_stages = case
    stages = split_blocks(num_blocks, num_stages)
    assert_partition(stages, num_blocks, num_stages)
    sizes = [len(stage) for stage in stages]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)  # the extra blocks come first


@given(blocks_and_stages(), st.data())
def test_a_balanced_split_holds_every_block_once_and_no_stage_is_empty(case, data):
    num_blocks, num_stages = case
    cost = st.floats(0, 1e6)
    costs = data.draw(st.lists(cost, min_size=num_blocks, max_size=num_blocks))
    assert_partition(balance_blocks(costs, num_stages), num_blocks, num_stages)


def largest(costs, stages):
    return max(sum(costs[block] for block in stage) for stage in stages)


def every_split(num_blocks, num_stages):
    for cuts in combinations(range(1, num_blocks), num_stages - 1):
        yield [range(first, last) for first, last in pairwise((0, *cuts, num_blocks))]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.data())
def test_no_split_is_better_than_the_balanced_one(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))
    best = min(largest(costs, stages) for stages in every_split(len(costs), num_stages))
    assert largest(costs, balance_blocks(costs, num_stages)) == best


def test_a_heavy_block_stands_alone():
    assert balance_blocks([1, 1, 9, 1], 3) == [range(0, 2), range(2, 3), range(3, 4)]
