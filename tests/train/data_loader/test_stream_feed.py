"""A run that reads a stream and is stopped goes on with the sample after the last it learned."""

from itertools import islice

import pytest
import torch

from stepladder.errors import DataError
from stepladder.train import climb, fit
from tests.data.streams_of_tests import ROWS, Counting, Keeping, make, row
from tests.ranks import run as on_ranks
from tests.train.toys import net

SIZE, STEPS = 4, 16  # an epoch and a half
KINDS = ["counting", "shuffling", "keeping"]


def train(kind, plan, folder, save=(), load=None, before=3, shuffle=True):
    """Losses of the steps until STEPS, the rows this rank learned from, and what was said."""
    torch.set_num_threads(1)
    torch.manual_seed(before)
    run = climb(net(), loss="cross_entropy", optimizer="adam lr=0.05", plan=plan, device="cpu")
    if load is not None:
        run.resume(f"{folder}/{load}")
    losses, rows = {}, {}
    with run.batches(make(kind), size=SIZE, seed=5, shuffle=shuffle) as feed:
        for batch in islice(feed, STEPS - run.index):
            index = run.index
            rows[index] = batch.inputs[:, 0].long().tolist()
            losses[index] = run.step(batch).loss
            if run.index in save:
                run.save(f"{folder}/{run.index}")
    return losses, rows, run.events


def both(kind, plan, folder, steps, shuffle):
    whole = train(kind, plan, folder, steps, shuffle=shuffle)
    return whole, [train(kind, plan, folder, load=step, before=9, shuffle=shuffle)
                   for step in steps]  # fmt: skip


@pytest.mark.parametrize("shuffle", [False, 10])
@pytest.mark.parametrize("kind", [*KINDS, "generator"])
def test_a_resumed_run_has_the_same_losses_to_the_bit(kind, shuffle, tmp_path):
    steps = [1, 5, 10]
    (losses, rows, _), resumed = both(kind, "fp32", tmp_path, steps, shuffle)
    assert len(losses) == (11 if kind == "generator" else STEPS)
    for step, (later, seen, said) in zip(steps, resumed):
        assert later == {index: loss for index, loss in losses.items() if index >= step}
        assert seen == {index: row for index, row in rows.items() if index >= step}
        if step == 10:
            assert any("own state" in one or "read again" in one for one in said)


@pytest.mark.parametrize("kind", KINDS)
def test_other_ranks_go_on_with_the_rows_that_were_left(kind, tmp_path):
    ranks = on_ranks(both, 2, kind, "fp32 ddp", tmp_path, [5], 10)
    (losses, _, _), _ = ranks[0]
    for (all_losses, _, _), ((later, _, _),) in ranks:
        assert later == {index: loss for index, loss in all_losses.items() if index >= 5}
    before = [row for (_, rows, _), _ in ranks for step in range(5) for row in rows[step]]
    alone, seen, _ = train(kind, "fp32", tmp_path, load=5, before=9, shuffle=10)
    first_epoch = before + [row for step in range(5, 11) for row in seen[step]]
    assert sorted(first_epoch[:ROWS]) == list(range(ROWS))
    assert [alone[step] for step in range(5, STEPS)] == pytest.approx(
        [losses[step] for step in range(5, STEPS)], rel=1e-5
    )
    later = on_ranks(train, 4, kind, "fp32 ddp", tmp_path, (), 5, 9, 10)
    together = [{*row} for row in zip(*(rows[5] for _, rows, _ in later))]
    assert {row for part in together for row in part} == {*seen[5]}


def test_a_checkpoint_that_is_loaded_moves_the_feed_and_a_rewind_does_not(tmp_path):
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    with run.batches(Keeping(), size=SIZE, shuffle=False) as feed:
        for _ in range(2):
            run.step(next(feed)).read()
        run.save(tmp_path)
        run.step(next(feed)).read()
        run.load(tmp_path)
        batch = next(feed)
        assert batch.inputs[:, 0].tolist() == [8, 9, 10, 11]
        run.step(batch).read()
        run.rewind(tmp_path)
        assert next(feed).inputs[:, 0].tolist() == [12, 13, 14, 15]


def test_a_second_loop_goes_on_and_another_stream_begins():
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    stream = Counting()
    for _ in fit(run, run.batches(stream, size=SIZE, shuffle=False), steps=2):
        pass
    with run.batches(stream, size=SIZE, shuffle=False) as feed:
        assert next(feed).inputs[:, 0].tolist() == [8, 9, 10, 11]
    with run.batches(Counting(), size=SIZE, shuffle=False) as feed:
        assert next(feed).inputs[:, 0].tolist() == [0, 1, 2, 3]
    assert run.events[0].startswith("the stream Counting keeps no position that leads back")


class ByRank(Counting):
    """Splits itself by rank, as streams often do."""

    def __iter__(self):
        rank = torch.distributed.get_rank()
        return (row(number) for number in range(rank, ROWS, 2))


def read_split():
    run = climb(net(), loss="cross_entropy", plan="fp32 ddp", device="cpu")
    with pytest.raises(DataError) as refused, run.batches(ByRank(), size=SIZE) as feed:
        next(feed)
    return str(refused.value)


class FailsOnOne(Counting):
    def __iter__(self):
        if torch.distributed.get_rank() == 1:
            raise OSError("disk gone")
        return super().__iter__()


def read_failing():
    run = climb(net(), loss="cross_entropy", plan="fp32 ddp", device="cpu")
    with pytest.raises(DataError) as refused, run.batches(FailsOnOne(), size=SIZE) as feed:
        next(feed)
    return str(refused.value)


def test_ranks_that_read_other_samples_or_fail_are_told_together():
    for said in on_ranks(read_split, 2):
        assert said.startswith("stream: data ranks 0 and 1 do not read the same samples from it")
    first, second = on_ranks(read_failing, 2)
    assert first.startswith("stream: data rank 1 cannot read its stream")
    assert "disk gone" in second


def test_a_number_to_shuffle_is_for_streams_only():
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    with pytest.raises(DataError, match="10 samples together are for a stream"):
        run.batches([torch.zeros(2)], size=1, shuffle=10)


def test_an_iterator_goes_on_and_cannot_be_moved_back(tmp_path):
    run, rows = climb(net(), loss="cross_entropy", plan="fp32", device="cpu"), make("generator")
    for first in (0, 4):
        with run.batches(rows, size=SIZE, shuffle=False) as feed:
            batch = next(feed)
            assert batch.inputs[0, 0] == first
            run.step(batch).read()
    run.save(tmp_path)
    with run.batches(rows, size=SIZE, shuffle=False) as feed:
        run.step(next(feed)).read()
        run.load(tmp_path)
        with pytest.raises(DataError, match="stands at sample 12 and cannot go back to 8"):
            next(feed)
