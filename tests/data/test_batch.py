import pickle

import pytest
import torch

from stepladder.data import Batch


def test_a_pair_is_inputs_and_targets():
    x, y = torch.zeros(3, 2), torch.tensor([1, -100, 2])
    batch = Batch.of((x, y), position=6, size=12)
    assert batch.inputs is x and batch.targets is y
    assert (batch.num_rows, batch.valid, batch.valid_by_row) == (3, 2, (1, 0, 1))
    assert (batch.position, batch.size, batch.skipped) == (6, 12, ())


@pytest.mark.parametrize("key", ["labels", "targets"])
def test_a_dict_with_labels_stays_whole_and_its_labels_are_the_targets(key):
    sample = {
        "input_ids": torch.ones(2, 4, dtype=torch.long),
        key: torch.tensor([[1, -100, 3, 4]] * 2),
    }
    batch = Batch.of(sample, position=0, size=2)
    assert batch.inputs is sample and batch.targets is sample[key] and batch.valid == 6


@pytest.mark.parametrize(
    "sample", [torch.zeros(4, 2), {"a": torch.zeros(4)}, (torch.zeros(4),) * 3]
)
def test_anything_else_is_inputs_alone(sample):
    batch = Batch.of(sample, position=0, size=4)
    assert batch.inputs is sample and batch.targets is None and batch.valid == 4


def test_targets_that_are_not_whole_numbers_all_count():
    batch = Batch.of((torch.zeros(2), torch.full((2, 3), -100.0)), position=0, size=2)
    assert batch.valid_by_row == (3, 3)


def test_rows_cut_every_tensor_and_the_counts():
    inputs = {"a": torch.arange(4), "b": (torch.arange(8).reshape(4, 2), torch.tensor(7))}
    batch = Batch.of((inputs, torch.tensor([0, -100, -100, 3])), position=8, size=4)
    part = batch.rows(slice(2, 4))
    assert part.inputs["a"].tolist() == [2, 3] and part.inputs["b"][0].tolist() == [[4, 5], [6, 7]]
    assert part.inputs["b"][1] == 7
    assert part.targets.tolist() == [-100, 3] and part.valid_by_row == (0, 1) and part.num_rows == 2
    assert (part.position, part.size) == (8, 4)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_chunk_can_be_flattened_as_a_whole_batch_can(ahead):
    labels = torch.arange(8).view(2, 4)
    batch = Batch.of({"input_ids": labels, "labels": labels}, position=0, size=2)
    part = batch.columns(slice(0, 2), ahead=ahead)
    assert part.targets.view(-1).tolist() == [ahead + n for n in (0, 1, 4, 5)]
    assert part.inputs["input_ids"].view(-1).tolist() == [0, 1, 4, 5]


def test_columns_cut_every_sequence_and_count_again():
    tokens, row = torch.arange(8).reshape(2, 4), torch.tensor([5, 6])
    targets = torch.tensor([[1, 2, 3, 4], [5, -100, -100, -100]])
    batch = Batch.of(({"tokens": tokens, "row": row}, targets), position=0, size=2)
    part = batch.columns(slice(2, 4))
    assert part.inputs["tokens"].tolist() == [[2, 3], [6, 7]]
    assert part.inputs["row"].tolist() == [5, 6]
    assert part.targets.tolist() == [[3, 4], [-100, -100]] and part.valid_by_row == (2, 0)
    assert part.leading_by_row == (0, 0)
    assert batch.columns(slice(0, 2)).leading_by_row == (1, 1)


def test_targets_ahead_are_taken_from_the_next_chunk():
    labels = torch.tensor([[1, 2, 3, 4], [5, -100, 7, 8]])
    batch = Batch.of({"labels": labels}, position=0, size=2)
    first, last = (batch.columns(part, ahead=1) for part in (slice(0, 2), slice(2, 4)))
    assert first.targets.tolist() == [[2, 3], [-100, 7]] and first.valid_by_row == (2, 1)
    assert last.targets.tolist() == [[4, -100], [8, -100]] and last.valid_by_row == (1, 1)
    assert first.valid + last.valid == batch.valid - batch.leading
    assert first.leading == last.leading == 0


def test_counting_valid_targets_does_not_synchronise_if_all_are_valid():
    batch = Batch.of({"labels": torch.ones(2, 4, dtype=torch.long)}, position=0, size=2)
    moved = batch.to("meta")
    assert moved.columns(slice(0, 2)).valid_by_row == (2, 2)
    assert moved.columns(slice(2, 4), ahead=1).valid_by_row == (1, 1)


def test_moving_keeps_labels_one_tensor_and_the_counts_known():
    labels = torch.tensor([[1, -100]])
    batch = Batch.of({"labels": labels}, position=0, size=1)
    moved = batch.to("meta", non_blocking=True)
    assert moved.targets.device.type == "meta" and moved.targets is moved.inputs["labels"]
    assert moved.valid == 1 and moved.rows(slice(0, 1)).valid == 1
    assert len(moved.tensors()) == 1


def test_a_batch_travels_between_processes():
    batch = Batch.of((torch.arange(3), torch.arange(3)), position=1, size=3)
    again = pickle.loads(pickle.dumps(batch))
    assert torch.equal(again.inputs, batch.inputs) and again.valid_by_row == (1, 1, 1)


def test_a_batch_does_not_change():
    batch = Batch.of(torch.zeros(1), position=0, size=1)
    with pytest.raises(AttributeError):
        batch.position = 3
