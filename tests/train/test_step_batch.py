"""What a user hands to `step` becomes a batch, or is refused with its shapes."""

import pytest
import torch

from stepladder.errors import DataError
from stepladder.train import as_batch


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
        "batch: its tensors have different numbers of rows: (3, 2), (4,). Give all the same."
    )
