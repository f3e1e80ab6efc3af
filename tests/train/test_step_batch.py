"""What a user hands to `step` becomes a batch, or is refused with its shapes."""

import pytest
import torch

from stepladder.errors import DataError
from stepladder.plan import Plan
from stepladder.train import as_batch
from stepladder.train.step_batch import rank_batch

TWO = Plan.parse("fp32 ddp replicate=2")


def test_pairs_dicts_lists_and_single_tensors_are_batches():
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    assert as_batch((x, y), 5).targets is y
    assert as_batch([x, y], 5).inputs is x
    assert as_batch({"input_ids": x, "labels": y}, 5).targets is y
    alone = as_batch(x, 5)
    assert alone.targets is None and (alone.position, alone.size) == (5, 3)


def test_a_batch_is_taken_as_it_is():
    batch = as_batch(torch.zeros(2), 0)
    assert as_batch(batch, 9) is batch


def test_a_batch_without_rows_is_refused():
    with pytest.raises(DataError, match="^batch: has no rows. Give at least one, or leave"):
        as_batch((torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)), 0)


def test_something_without_tensors_is_refused():
    with pytest.raises(DataError) as raised:
        as_batch({"text": "hello"}, 0)
    assert str(raised.value) == (
        "batch: a dict holds no tensor. "
        "Give step a tensor, a pair (inputs, targets) or a dict of tensors."
    )


def test_rows_that_do_not_agree_are_shown():
    with pytest.raises(DataError) as raised:
        as_batch((torch.zeros(3, 2), torch.zeros(4)), 0)
    assert str(raised.value) == (
        "batch: its tensors have different numbers of rows: (3, 2), (4,). A row is one sample, "
        "and the first dimension of every tensor counts them: put it first (batch_first=True), "
        "and pad samples of unequal shape."
    )


def test_tensors_of_several_data_ranks_must_say_whose_rows_they_are():
    with pytest.raises(DataError) as raised:
        rank_batch(torch.zeros(4, 2), 0, TWO, 0)
    assert str(raised.value) == (
        "rows: 2 ranks share the data, and tensors do not say if they are one rank's or all's. "
        "Pass rows='rank' (a DataLoader with DistributedSampler), rows='global' (every rank reads "
        "the same rows), or take batches from run.batches."
    )
    with pytest.raises(DataError, match="rows: 'mine' is neither. Use 'rank' or 'global'."):
        rank_batch(torch.zeros(4, 2), 0, TWO, 0, "mine")


def test_a_ranks_own_rows_are_a_part_of_a_batch_as_many_times_as_large():
    batch = rank_batch(torch.arange(4), 0, TWO, 1, "rank")
    assert batch.inputs.tolist() == [0, 1, 2, 3] and batch.size == 8


@pytest.mark.parametrize("size", [8, 7])
def test_ranks_split_a_global_batch_without_losing_or_repeating_a_row(size):
    given = {"x": torch.arange(size), "labels": torch.arange(size)}
    parts = [rank_batch(given, 3, TWO, index, "global") for index in range(2)]
    assert sorted(torch.cat([part.inputs["x"] for part in parts]).tolist()) == list(range(size))
    assert [(part.position, part.size) for part in parts] == [(3, size)] * 2
    assert all(part.targets.equal(part.inputs["x"]) for part in parts)


def test_one_data_rank_needs_no_word_and_takes_the_same_rows_with_one():
    plan = Plan.parse("fp32 tensor=2").settle(2)
    for rows in (None, "rank", "global"):
        assert rank_batch(torch.arange(4), 0, plan, 0, rows).inputs.tolist() == [0, 1, 2, 3]
