import numpy as np
import pytest
import torch

from stepladder.data import ReadPolicy
from stepladder.data.collate import check_longest, shorten, stack
from stepladder.errors import DataError


def stacked(*samples, **policy):
    return stack(samples, [f"sample {n}" for n in range(len(samples))], ReadPolicy(**policy))


def test_equal_samples_are_stacked_with_their_types():
    x, y = stacked((np.float64([1, 2]), 3), (np.float64([4, 5]), 6))
    assert x.tolist() == [[1, 2], [4, 5]] and x.dtype == torch.float64
    assert y.tolist() == [3, 6] and y.dtype == torch.int64
    assert stacked(0.5, 1.5).dtype == torch.float32
    assert stacked(np.zeros(3, np.uint8), np.zeros(3, np.uint8)).dtype == torch.uint8
    assert stacked(np.zeros(3, np.uint16), np.zeros(3, np.uint16)).dtype == torch.int64


def test_nested_parts_are_stacked_in_place():
    inputs, targets = stacked(({"a": torch.ones(2)}, 1), ({"a": torch.zeros(2)}, 0))
    assert inputs["a"].tolist() == [[1, 1], [0, 0]] and targets.tolist() == [1, 0]


def test_rows_of_different_lengths_are_padded_and_their_targets_masked():
    x, y = stacked(
        (torch.tensor([1, 2, 3]), torch.tensor([2, 3, 4])),
        (torch.tensor([9]), torch.tensor([8])),
        pad=7,
    )
    assert x.tolist() == [[1, 2, 3], [9, 7, 7]]
    assert y.tolist() == [[2, 3, 4], [8, -100, -100]]


def test_a_hugging_face_sample_pads_each_part_its_own_way():
    batch = stacked(
        {"input_ids": [5, 6], "attention_mask": [1, 1], "labels": [5, 6]},
        {"input_ids": [5], "attention_mask": [1], "labels": [5]},
        pad=50256,
    )
    assert batch["input_ids"].tolist() == [[5, 6], [5, 50256]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["labels"].tolist() == [[5, 6], [5, -100]]


def test_a_sample_over_the_longest_stops_or_is_cut_as_the_policy_says():
    long, short = torch.arange(5), torch.arange(2)
    with pytest.raises(
        DataError, match=r"sample 1: has 5 tokens and the longest allowed is 3\. Use longest=5"
    ):
        stacked(short, long, longest=3)
    assert stacked(short, long, longest=3, too_long="cut").tolist() == [[0, 1, 0], [0, 1, 2]]
    assert stacked(short, long, longest=5).shape == (2, 5)


def test_samples_that_came_stacked_are_held_to_the_longest_too():
    windows = (torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long))
    with pytest.raises(DataError, match=r"every sample: has 5 tokens and the longest allowed is 4"):
        check_longest(windows, ReadPolicy(longest=4))
    assert check_longest(windows, ReadPolicy(longest=4, too_long="cut"))[1].shape == (2, 4)
    assert check_longest(windows, ReadPolicy(longest=5)) is windows


def test_shortening_cuts_tokens_and_leaves_pictures():
    pictures, tokens, labels = (
        torch.zeros(2, 3, 8, 8),
        torch.zeros(2, 8).long(),
        torch.zeros(2).long(),
    )
    cut = shorten({"p": pictures, "t": tokens, "l": labels, "f": torch.zeros(2, 8)}, 4)
    assert [tuple(cut[key].shape) for key in "ptlf"] == [(2, 3, 8, 8), (2, 4), (2,), (2, 8)]
    assert cut["t"].is_contiguous()


def test_samples_of_different_shape_or_structure_are_named():
    with pytest.raises(
        DataError, match=r"sample 0: part 0 has shape \(2, 2\), sample 0 has \(2, 2\). Only"
    ):
        stacked(torch.zeros(2, 2), torch.zeros(2, 3))
    with pytest.raises(
        DataError, match=r"sample 1: is 3 parts and sample 0 is 2 parts. Give every"
    ):
        stacked((1, 2), (1, 2, 3))
    with pytest.raises(DataError, match=r"sample 1: is a dict of b and sample 0 is a dict of a"):
        stacked({"a": 1}, {"b": 1})


def test_text_in_a_sample_is_refused_by_name():
    with pytest.raises(DataError, match=r"sample 0: text is str, not numbers. Tokenise it"):
        stacked({"text": "hello"}, {"text": "world"})


def test_a_read_only_array_is_copied_without_a_warning(recwarn):
    array = np.arange(3)
    array.flags.writeable = False
    assert stacked(array, array).tolist() == [[0, 1, 2]] * 2
    assert not recwarn.list


def test_ragged_float_targets_are_refused_since_no_float_means_ignored():
    samples = [(np.zeros(4), np.zeros(n, np.float32)) for n in (3, 5)]
    with pytest.raises(DataError, match="sample 0: targets are floats of 3 to 5 in a row, and no"):
        stack(samples, ["sample 0", "sample 1"], ReadPolicy())
