import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.data import Arrays, ReadPolicy, SampleOrder, batches, load_batch, text_corpus
from stepladder.data.formats.token_files import TokenWindows
from stepladder.errors import DataError


def rows_of(feed, steps):
    with feed:
        return [next(feed).inputs.tolist() for _ in range(steps)]


@given(
    length=st.integers(1, 40),
    size=st.integers(1, 12),
    resumed=st.integers(0, 5),
    workers=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_a_run_resumed_from_its_position_goes_on_as_if_never_stopped(
    length, size, resumed, workers, seed
):
    source = Arrays(torch.arange(length))
    whole = rows_of(batches(source, size=size, seed=seed, workers=0), 8)
    again = batches(source, size=size, seed=seed, start=resumed * size, workers=workers)
    assert rows_of(again, 8 - resumed) == whole[resumed:]


@given(length=st.integers(1, 40), size=st.integers(1, 12), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_each_sample_comes_once_per_epoch(length, size, seed):
    feed = rows_of(
        batches(Arrays(torch.arange(length)), size=size, seed=seed, workers=0), 3 * length
    )
    stream = [index for row in feed for index in row]
    for begin in range(0, len(stream) - length + 1, length):
        assert sorted(stream[begin : begin + length]) == list(range(length))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_loads_the_same_global_batches(ranks):
    source = Arrays(torch.arange(50))
    expected = rows_of(batches(source, size=8, seed=1), 10)
    shares = [
        rows_of(
            batches(
                source, size=8, seed=1, share=lambda step, size, r=r: np.arange(r, size, ranks)
            ),
            10,
        )
        for r in range(ranks)
    ]
    for step in range(10):
        together = [None] * 8
        for rank in range(ranks):
            together[rank::ranks] = shares[rank][step]
        assert together == expected[step]


def test_a_batch_knows_its_place_in_the_global_batch():
    asked = []

    def share(step, size):
        asked.append((step, size))
        return np.array([1, 2])

    with batches(Arrays(torch.arange(20)), size=6, start=12, share=share, workers=0) as feed:
        first, second = next(feed), next(feed)
    assert (first.position, first.size, first.num_rows) == (12, 6, 2)
    assert second.position == 18 and asked == [(2, 6), (3, 6)]


def test_an_end_gives_every_sample_once_the_last_batch_being_what_is_left():
    with batches(Arrays(torch.arange(10)), size=4, stop=10) as feed:
        sizes = [(batch.position, batch.size, batch.num_rows) for batch in feed]
    assert sizes == [(0, 4, 4), (4, 4, 4), (8, 2, 2)]
    assert list(batches(Arrays(torch.arange(10)), size=4, start=10, stop=10)) == []


def test_a_length_schedule_shortens_windows_by_step_and_keeps_the_samples():
    source = TokenWindows(np.arange(1000), 16)
    with batches(source, size=2) as full, batches(source, size=2, lengths="4@0,8@1,16@3") as cut:
        for length in (4, 8, 8, 16, 16):
            whole, part = next(full), next(cut)
            assert part.inputs.shape == part.targets.shape == (2, length)
            assert torch.equal(part.inputs, whole.inputs[:, :length])
            assert part.valid == 2 * length
    with batches(source, size=2, start=4, lengths=lambda step: step + 1) as feed:
        assert next(feed).inputs.shape == (2, 3)


def test_a_schedule_beyond_the_windows_or_without_any_is_refused():
    with pytest.raises(
        DataError, match=r"lengths: 32 tokens are asked of windows of 16. Use at most 16"
    ):
        batches(TokenWindows(np.arange(99), 16), size=1, lengths="8@0,32@5")
    with pytest.raises(DataError, match=r"lengths: list has no windows to shorten. Leave it out"):
        batches([1], size=1, lengths="8")


def test_the_longest_sample_may_be_bounded():
    source = [torch.arange(3), torch.arange(9)]
    with (
        batches(source, size=2, longest=8) as feed,
        pytest.raises(
            DataError, match=r"sample 1 \(list\): has 9 tokens and the longest allowed is 8"
        ),
    ):
        next(feed)
    with batches(source, size=2, longest=8, reading=ReadPolicy(too_long="cut")) as feed:
        assert next(feed).inputs.shape == (2, 8)


def test_load_reads_any_positions_now():
    batch = load_batch(Arrays(torch.arange(9)), SampleOrder(9, shuffle=False), np.array([8, 9, 10]))
    assert batch.inputs.tolist() == [8, 0, 1] and (batch.position, batch.size) == (8, 3)


def test_a_corpus_trains_by_default():
    with batches(text_corpus(length=32, limit_bytes=20_000), size=4) as feed:
        batch = next(feed)
    assert batch.inputs.shape == batch.targets.shape == (4, 32) and batch.valid == 128


def test_a_wrong_size_start_or_share_is_refused():
    with pytest.raises(DataError, match=r"size: 0 is not a number of samples"):
        batches([1], size=0)
    with pytest.raises(DataError, match=r"start: -1 is before the first sample"):
        batches([1], size=1, start=-1)
    for offsets in ([4], [-1]):
        with (
            batches([1], size=4, share=lambda step, size, o=offsets: np.array(o, int)) as feed,
            pytest.raises(
                DataError, match=r"share: offsets .* of a batch of 4 at step 0. Give each"
            ),
        ):
            next(feed)


def test_a_rank_without_rows_reads_one_that_counts_for_nothing():
    rows = [(torch.tensor([n, n]), torch.tensor([n, n])) for n in range(3)]
    with batches(rows, size=3, shuffle=False, share=lambda step, size: np.arange(0)) as feed:
        batch = next(feed)
    assert (batch.idle, batch.num_rows, batch.valid, batch.size) == (True, 1, 0, 3)
