from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.data import TokenFile, batches
from stepladder.data.packing import EndTokenDocuments, pack
from stepladder.errors import DataError


def slow_rows(documents, length):
    """The same rows, token by token."""
    flat = [(token, number) for number, words in enumerate(documents) for token in words]
    for begin in range(0, len(flat) - length, length):
        if begin + length + 1 > len(flat):
            return
        row, last = flat[begin : begin + length + 1], None
        tokens, document, position, targets = [], [], [], []
        for (token, number), (following, its_number) in pairwise(row):
            new = not tokens or number != last
            document.append(0 if not tokens else document[-1] + new)
            position.append(0 if new else position[-1] + 1)
            tokens.append(token)
            targets.append(following if its_number == number else -100)
            last = number
        yield tokens, document, position, targets


@given(
    documents=st.lists(
        st.lists(st.integers(0, 50), min_size=1, max_size=12), min_size=1, max_size=20
    ),
    length=st.integers(1, 15),
)
@settings(max_examples=150, deadline=None)
def test_packed_rows_are_those_of_the_plain_definition(documents, length):
    if sum(map(len, documents)) < length + 1:
        return
    packed, expected = pack(documents, length), list(slow_rows(documents, length))
    assert len(packed) == len(expected)
    inputs, targets = packed.fetch(np.arange(len(packed)))
    for row, (tokens, document, position, wanted) in enumerate(expected):
        assert inputs["tokens"][row].tolist() == tokens
        assert inputs["documents"][row].tolist() == document
        assert inputs["positions"][row].tolist() == position
        assert targets[row].tolist() == wanted
        one_inputs, one_targets = packed[row]
        assert torch.equal(one_inputs["documents"], inputs["documents"][row])
        assert torch.equal(one_targets, targets[row])


def test_a_token_file_with_a_document_end_is_packed(tmp_path):
    np.array([5, 6, 0, 7, 0, 8, 9, 9, 9], np.uint16).tofile(tmp_path / "a.bin")
    inputs, targets = TokenFile(tmp_path / "a.bin", 8, document_end=0)[0]
    assert inputs["tokens"].tolist() == [5, 6, 0, 7, 0, 8, 9, 9]
    assert inputs["documents"].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert inputs["positions"].tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert targets.tolist() == [6, 0, -100, 0, -100, 9, 9, 9]


def test_masked_targets_are_not_counted_as_valid(tmp_path):
    np.array([5, 6, 0, 7, 0, 8, 9, 9, 9], np.uint16).tofile(tmp_path / "a.bin")
    with batches(TokenFile(tmp_path / "a.bin", 8, document_end=0, vocabulary=10), size=2) as feed:
        batch = next(feed)
    assert batch.valid == 12 and batch.valid_by_row == (6, 6)


@given(begin=st.integers(0, 999), length=st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_documents_begin_after_each_end_token_and_at_borders(begin, length):
    tokens = np.random.default_rng(0).integers(0, 4, 1000)
    end = min(begin + length, 1000)
    found = EndTokenDocuments(tokens, 3, np.array([0, 500])).between(begin, end)
    after = [place for place in range(begin, end) if place and tokens[place - 1] == 3]
    borders = [place for place in (0, 500) if begin <= place < end]
    assert set(found.tolist()) == {*after, *borders}


def test_too_few_documents_are_refused_with_the_numbers():
    with pytest.raises(
        DataError, match=r"documents have 4 tokens and one row needs 9. Use length=3"
    ):
        pack([[1, 2], [3, 4]], 8)
    with pytest.raises(
        DataError, match=r"documents have 1 tokens and one row needs 9. Give more doc"
    ):
        pack([[1]], 8)
    with pytest.raises(DataError, match=r"none of them has a token. Give at least one document"):
        pack([[], []], 8)


def test_iterating_over_packed_rows_ends():
    assert len(list(pack([[1, 2, 3], [4, 5, 6, 7]], 3))) == 2
