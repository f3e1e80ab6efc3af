import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.data import SampleOrder
from stepladder.errors import DataError


@given(length=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**30))
@settings(max_examples=150, deadline=None)
def test_every_index_comes_exactly_once_in_every_epoch(length, seed, epoch):
    positions = np.arange(length) + epoch * length
    assert sorted(SampleOrder(length, seed).indices(positions)) == list(range(length))


@given(
    length=st.integers(2, 10**15),
    seed=st.integers(0, 10**6),
    first=st.integers(0, 10**18),
    cut=st.integers(1, 63),
)
@settings(max_examples=50, deadline=None)
def test_a_position_means_the_same_sample_however_it_is_reached(length, seed, first, cut):
    order, positions = SampleOrder(length, seed), np.arange(first, first + 64)
    whole = order.indices(positions)
    parts = [order.indices(positions[:cut]), order.indices(positions[cut:])]
    assert np.array_equal(whole, np.concatenate(parts))
    assert whole.min() >= 0 and whole.max() < length


def test_a_batch_across_the_border_of_epochs_ends_one_and_begins_the_next():
    order = SampleOrder(10, 3)
    across = order.indices(np.arange(7, 13))
    assert list(across[:3]) == list(order.indices(np.arange(10)))[7:]
    assert list(across[3:]) == list(order.indices(np.arange(10, 20)))[:3]


def test_epochs_and_seeds_give_different_orders():
    epochs = {tuple(SampleOrder(50, 0).indices(np.arange(50) + 50 * epoch)) for epoch in range(100)}
    seeds = {tuple(SampleOrder(50, seed).indices(np.arange(50))) for seed in range(100)}
    assert len(epochs) == 100 and len(seeds) == 100 and len(epochs & seeds) == 1


def test_without_shuffle_the_order_is_the_source_itself():
    assert list(SampleOrder(4, 9, shuffle=False).indices(np.arange(6))) == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("length", [2, 3, 5, 6, 12, 100])
def test_every_index_is_equally_likely_at_every_place(length):
    trials, seen = 400_000 // length, np.zeros((length, length))
    indices = SampleOrder(length, 7).indices(np.arange(length * trials)).reshape(trials, length)
    np.add.at(seen, (np.arange(length), indices), 1)
    expected, freedom = trials / length, (length - 1) ** 2
    chi_square = ((seen - expected) ** 2 / expected).sum()
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("length", [1000, 2**16, 10**9 + 7, 10**15])
def test_neighbours_do_not_stay_neighbours(length):
    indices = SampleOrder(length, 1).indices(np.arange(min(length, 50_000))) / length
    assert abs(np.corrcoef(indices[:-1], indices[1:])[0, 1]) < 0.04 + 1 / len(indices) ** 0.5
    assert abs(np.corrcoef(np.arange(len(indices)), indices)[0, 1]) < 0.1
    assert abs(indices[: len(indices) // 4].mean() - 0.5) < 0.1
    rising = (np.diff(indices) > 0).mean()
    assert 0.45 < rising < 0.55


def test_two_samples_keep_no_distance_from_epoch_to_epoch():
    places = np.argsort(
        [SampleOrder(64, 0).indices(np.arange(64) + 64 * e) for e in range(400)], axis=1
    )
    distances = (places[:, 0] - places[:, 1]) % 64
    assert len(set(distances.tolist())) > 55


def test_the_order_is_the_same_for_ever():
    # a run resumed under another version must go on with the same samples
    assert SampleOrder(1000, 42).indices(np.arange(6)).tolist() == [211, 550, 398, 889, 598, 23]


def test_an_order_of_nothing_is_refused():
    with pytest.raises(DataError, match=r"order\.length: 0 samples have no order\. Use at least 1"):
        SampleOrder(0)
