import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.data import TokenShards, batches
from stepladder.data.mixture import Mixture, draws_per_period, interleave
from stepladder.errors import DataError
from tests.data.formats.shard_writers import write_megatron


@given(draws=st.lists(st.integers(1, 60), min_size=1, max_size=7))
@settings(max_examples=200, deadline=None)
def test_every_prefix_is_within_one_sample_of_the_weights(draws):
    chosen, earlier = interleave(draws)
    counts = np.cumsum(chosen[:, None] == np.arange(len(draws)), axis=0)
    shares = np.arange(1, len(chosen) + 1)[:, None] * np.array(draws) / sum(draws)
    assert np.abs(counts - shares).max() < 1
    assert counts[-1].tolist() == draws
    assert all(counts[place, chosen[place]] - 1 == earlier[place] for place in range(len(chosen)))


@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=5),
    first=st.integers(0, 10**6),
)
@settings(max_examples=15, deadline=None)
def test_whole_draws_keep_the_weights(weights, first):
    draws = draws_per_period(weights)
    for count, weight in zip(draws, weights):
        assert abs(count / sum(draws) - weight / sum(weights)) < 2e-5


def test_simple_weights_have_short_periods():
    assert draws_per_period([0.7, 0.2, 0.1]) == [7, 2, 1]
    assert draws_per_period([1, 1, 1]) == [1, 1, 1]
    assert draws_per_period([30, 10]) == [3, 1]
    assert sum(draws_per_period([2**0.5, 1, 3.14159])) <= 100_000


def test_each_source_is_seen_once_per_its_own_epoch():
    small, large = [("s", n) for n in range(4)], [("l", n) for n in range(100)]
    mix = Mixture([small, large], [0.5, 0.5])
    samples = [mix[index] for index in mix.order(5, True).indices(np.arange(200)).tolist()]
    from_small = [number for kind, number in samples if kind == "s"]
    from_large = [number for kind, number in samples if kind == "l"]
    assert sorted(from_large) == list(range(100)) and from_large != sorted(from_large)
    assert all(sorted(from_small[n : n + 4]) == [0, 1, 2, 3] for n in range(0, 100, 4))


def test_a_mixture_resumes_anywhere():
    mix = Mixture([list(range(7)), list(range(100, 131)), list(range(200, 203))], [5, 3, 1])
    with batches(mix, size=4) as feed:
        whole = [next(feed).inputs.tolist() for _ in range(12)]
    with batches(mix, size=4, start=20) as feed:
        assert [next(feed).inputs.tolist() for _ in range(7)] == whole[5:]


def test_a_mixture_of_mixtures_mixes():
    inner = Mixture([[0] * 5, [1] * 5], [1, 1])
    outer = Mixture([inner, [2] * 3], [2, 1])
    kinds = [outer[index] for index in outer.order(0, True).indices(np.arange(300)).tolist()]
    assert [kinds.count(kind) for kind in (0, 1, 2)] == [100, 100, 100]


def test_the_mixture_knows_its_parts():
    mix = Mixture([[0, 1], [10, 11, 12]], [1, 3])
    assert list(mix) == [0, 1, 10, 11, 12] and mix.weights == (0.25, 0.75)
    assert mix.where(3) == "sample 1 of source 1"


def test_wrong_weights_are_refused():
    with pytest.raises(DataError, match=r"mix\.weights: 2 sources and 1 weights. Give one weight"):
        Mixture([[1], [2]], [1])
    with pytest.raises(DataError, match=r"mix\.weights: 0 is not a share. Use positive numbers"):
        Mixture([[1], [2]], [1, 0])
    with pytest.raises(DataError, match=r"mix\.weights: half is not a share. Use positive numbers"):
        Mixture([[1], [2]], ["half", 1])
    with pytest.raises(DataError, match=r"a share of 1e-06 is less than one sample in 100000"):
        Mixture([[1], [2]], [1, 1e-6])


def test_a_mixture_is_fetched_as_it_is_read_one_by_one(tmp_path):
    for name, first in (("a", 0), ("b", 100)):
        write_megatron(tmp_path / f"{name}.bin", [[first + one] * 9 for one in range(50)])
    for packed in (False, True):
        mix = Mixture(
            [TokenShards(tmp_path / f"{name}.bin", 8, packed=packed) for name in "ab"], [2, 1]
        )
        indices = mix.order(0, True).indices(np.arange(30))
        inputs, targets = mix.fetch(indices)
        for row, index in enumerate(indices.tolist()):
            alone, its_targets = mix[index]
            assert torch.equal(targets[row], its_targets)
            for name in alone if packed else [...]:
                assert torch.equal(inputs[name][row] if packed else inputs[row], alone[name])
    assert mix.length == 8


def test_sources_of_different_make_are_not_fetched_together(tmp_path):
    write_megatron(tmp_path / "a.bin", [[1, 2, 3]] * 9)
    plain, packed = (TokenShards(tmp_path / "a.bin", 4, packed=packed) for packed in (False, True))
    longer = TokenShards(tmp_path / "a.bin", 5)
    for other in (packed, longer, [1] * 9):
        mix = Mixture([plain, other], [1, 1])
        assert mix.fetch(np.array([0, len(plain)])) is None
        assert hasattr(mix, "length") == (other is packed)
    assert mix.fetch(np.array([0, 1])) is not None  # of one source only
