import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.data.locality_order import LocalityOrder


@given(
    length=st.integers(1, 300),
    block=st.integers(1, 40),
    blocks_together=st.integers(1, 5),
    seed=st.integers(0, 9),
)
@settings(max_examples=150, deadline=None)
def test_every_index_stands_once_in_each_epoch_in_another_order(
    length, block, blocks_together, seed
):
    order = LocalityOrder(length, block, blocks_together, seed)
    epochs = order.indices(np.arange(2 * length)).reshape(2, length)
    assert all(sorted(epoch.tolist()) == list(range(length)) for epoch in epochs)
    if length > 50 and block > 1:
        assert epochs[0].tolist() != epochs[1].tolist()


def test_few_blocks_are_walked_at_a_time_and_mixed_with_each_other():
    found = LocalityOrder(10_000, 100, 4).indices(np.arange(10_000)).reshape(25, 400)
    assert all(len(set((row // 100).tolist())) == 4 for row in found)
    assert all(len(set((row[:40] // 100).tolist())) == 4 for row in found)
    assert (found[0] % 100).tolist() != (found[1] % 100).tolist()  # each few in an order of its own
    assert found[0][0] // 100 != 0 or found[1][0] // 100 != 4  # the blocks are shuffled too


@pytest.mark.parametrize("start", [0, 137, 9_999, 123_456_789_012])
def test_any_position_is_looked_up_alone(start):
    order = LocalityOrder(10_007, 64, 8, seed=3)
    positions = np.arange(start, start + 50)
    alone = [order.indices(np.array([position]))[0] for position in positions]
    assert order.indices(positions).tolist() == alone
