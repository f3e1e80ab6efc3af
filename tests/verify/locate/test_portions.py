"""A rank's part of a tensor is recognised by its shape, in every way that tensors are cut."""

import torch

from stepladder.verify.locate.portions import Portion

WHOLE = torch.arange(4 * 6 * 12).view(4, 6, 12).float()  # rows, tokens, columns
ROWS = Portion((1, 3), 4)


def parts(portion, whole, *shape):
    return [reading.part for reading in portion.readings(whole, shape)]


def test_rows_of_a_micro_batch():
    (found,) = parts(ROWS, WHOLE, 2, 6, 12)
    assert torch.equal(found, WHOLE[[1, 3]])
    (found,) = parts(ROWS, WHOLE.transpose(0, 1), 6, 2, 12)  # a sequence's tokens first
    assert torch.equal(found, WHOLE.transpose(0, 1)[:, [1, 3]])


def test_rows_and_tokens_in_one_dimension():
    by_row, by_token = parts(ROWS, WHOLE.flatten(0, 1), 12, 12)
    assert torch.equal(by_row, WHOLE[[1, 3]].flatten(0, 1))
    assert torch.equal(by_token, WHOLE.flatten(0, 1).view(6, 4, 12)[:, [1, 3]].flatten(0, 1))


def test_what_is_not_cut_with_the_batch_is_not_compared():
    """It may be a mean over the batch, which a part of it does not have."""
    assert parts(ROWS, torch.zeros(()), *()) == []
    assert parts(ROWS, WHOLE[0], 6, 12) == []
    assert len(parts(Portion((0, 1, 2, 3), 4), torch.zeros(5), 5)) == 1


def test_columns_slices_and_thirds_of_a_matrix():
    portion = Portion((1, 3), 4, columns=(1, 2))
    slice_, thirds, *_ = parts(portion, WHOLE, 2, 6, 6)
    assert torch.equal(slice_, WHOLE[[1, 3], :, 6:])
    assert torch.equal(thirds, WHOLE[[1, 3]][..., [2, 3, 6, 7, 10, 11]])
    uneven = Portion((0, 1, 2, 3), 4, columns=(1, 2))
    assert torch.equal(parts(uneven, WHOLE[..., :11], 4, 6, 5)[0], WHOLE[..., 6:11])


def test_tokens_of_a_chunk_and_of_a_rank_within_it():
    chunk = Portion((0, 1, 2, 3), 4, tokens=(1, 2))
    assert torch.equal(parts(chunk, WHOLE, 4, 3, 12)[0], WHOLE[:, 3:])
    within = Portion((0, 1, 2, 3), 4, tokens=(1, 2), columns=(0, 3))
    assert torch.equal(parts(within, WHOLE, 4, 1, 12)[0], WHOLE[:, 3:4])
    assert parts(chunk, WHOLE, 4, 6, 12) == []
