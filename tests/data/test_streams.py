"""A stream's batches: every sample once an epoch, and from any place on as if never stopped."""

from itertools import islice

import pytest
import torch

from stepladder.data import ReadPolicy
from stepladder.data.streams.stream_batches import is_stream, stream_batches
from stepladder.data.streams.stream_place import StreamPlace, keeps_position
from stepladder.errors import DataError
from tests.data.streams_of_tests import ROWS, Counting, Keeping, hugging_face, make

KINDS = ["counting", "shuffling", "keeping", "hf", "hf mapped", "hf buffer"]


def numbers(batch):
    """Which rows a batch holds."""
    if isinstance(batch.inputs, dict):
        return batch.inputs["n"].tolist()
    return batch.inputs[:, 0].long().tolist()


def drawn(batch):
    return None if isinstance(batch.inputs, dict) else batch.inputs[:, 1].tolist()


def read(stream, count, **options):
    with stream_batches(stream, **{"size": 4, "seed": 3, "workers": 0, **options}) as feed:
        return list(islice(feed, count))


def seen(batches):
    return [number for batch in batches for number in numbers(batch)]


@pytest.mark.parametrize("buffer", [0, 7, 10, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_from_any_place_as_if_never_stopped(kind, buffer):
    torch.manual_seed(1)
    whole = read(make(kind), 30, buffer=buffer)
    for step in (1, 5, 9, 10, 11, 16, 24):
        torch.manual_seed(step)  # another process begins with other generators
        place = StreamPlace.from_dict(whole[step - 1].place.to_dict())
        again = read(make(kind), 6, buffer=buffer, place=place)
        for one, other in zip(whole[step:], again, strict=False):
            assert numbers(one) == numbers(other) and drawn(one) == drawn(other)
            assert one.place.count == other.place.count


@pytest.mark.parametrize("buffer", [0, 7, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_comes_once_an_epoch(kind, buffer):
    expected = [n for n in range(ROWS) if kind != "hf mapped" or n % 6 != 5]
    got = seen(read(make(kind), 3 * len(expected), size=1, buffer=buffer))
    epochs = [got[n : n + len(expected)] for n in range(0, len(got), len(expected))]
    assert all(sorted(epoch) == expected for epoch in epochs) and len(epochs) == 3
    if kind in ("counting", "keeping"):
        assert (epochs[0] == expected) == (buffer == 0)
        assert (epochs[0] == epochs[1]) == (buffer == 0)


def test_its_own_state_is_used_where_it_loses_nothing_and_is_said():
    assert keeps_position(Keeping()) and not keeps_position(Counting())
    assert keeps_position(hugging_face("hf")) and keeps_position(hugging_face("hf mapped"))
    assert not keeps_position(hugging_face("hf buffer"))
    whole = read(Keeping(), 6)
    stream = Keeping()
    again = read(stream, 2, place=whole[3].place)
    assert stream.made == 8 and seen(again) == seen(whole[4:])
    assert again[0].skipped == (
        "the stream Keeping goes on from its own state, at sample 16 of epoch 0",
    )
    replayed = read(Counting(), 1, place=read(Counting(), 4)[3].place)
    assert (
        replayed[0]
        .skipped[0]
        .startswith("16 samples of the stream Counting were read again from the start of epoch 0")
    )


def test_a_block_that_was_begun_is_given_out_as_it_was_shuffled():
    whole = read(Counting(), 8, buffer=10)
    rest = read(Counting(), 12, buffer=6, seed=9, place=whole[0].place, size=1)
    assert seen(rest)[:6] == seen(whole)[4:10]
    assert sorted(seen(rest)[6:]) == list(range(10, 16))


def test_an_iterator_ends_the_batches_and_a_class_begins_again():
    batches = read(make("generator"), 20)
    assert seen(batches) == list(range(ROWS)) and batches[-1].size == 3
    shuffled = read(make("generator"), 20, buffer=8)
    assert sorted(seen(shuffled)) == list(range(ROWS))
    assert seen(read(Counting(3), 2)) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_an_iterator_is_resumed_by_reading_on():
    whole = read(make("generator"), 20, buffer=8)
    again = read(make("generator"), 20, buffer=8, place=whole[4].place)
    assert seen(again) == seen(whole[5:])


@pytest.mark.parametrize("workers", [0, 1, "1 processes"])
def test_workers_change_nothing(workers):
    expected = read(Counting(), 12, buffer=10)
    got = read(Counting(), 12, buffer=10, workers=workers)
    assert seen(got) == seen(expected) and got[-1].place == expected[-1].place


def test_a_stream_that_changed_or_shrank_is_told():
    place = read(Counting(), 4)[3].place
    other = ((x + 1, y) for x, y in Counting())
    assert "begins with another sample" in read(list_stream(other), 1, place=place)[0].skipped[1]
    assert "had 16 or more samples before" in read(Counting(9), 1, place=place)[0].skipped[1]


def list_stream(samples):
    """A stream of the same name, whose samples are these."""
    kept = list(samples)
    return type("Counting", (Counting,), {"__iter__": lambda self: iter(kept)})()


class Failing(Counting):
    def __iter__(self):
        yield torch.zeros(2), 0
        raise ValueError("a broken line")


def test_what_a_stream_cannot_do_is_refused_in_one_line():
    with pytest.raises(DataError, match=r"sample 1 \(Failing\): cannot be read \(ValueError: a br"):
        read(Failing(), 1)
    with pytest.raises(DataError, match="stream: Counting has no sample. Give at least one"):
        read(Counting(0), 1)
    with pytest.raises(DataError, match="after an error it cannot go on"):
        read(Counting(), 1, reading=ReadPolicy(on_error="skip"))


def test_a_stream_split_by_rank_is_refused():
    import datasets.distributed

    split = datasets.distributed.split_dataset_by_node(hugging_face("hf"), rank=1, world_size=2)
    with pytest.raises(DataError, match=r"split by rank \(part 1 of 2\).*Leave split_dataset_by"):
        read(split, 1)


def test_what_is_a_stream():
    assert is_stream(Counting()) and is_stream(make("generator")) and is_stream(hugging_face("hf"))
    assert not any(map(is_stream, ([1], (1,), range(3), {1}, {"x": 1}, "text", torch.zeros(2), 3)))
