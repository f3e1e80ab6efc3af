import os
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.data import TokenShards
from stepladder.data.formats.token_pieces import JoinedPieces, OpenPiece, TokenPiece
from stepladder.errors import DataError

from .shard_writers import write_raw


def held(tokens):
    return OpenPiece(tokens, None)


def laid(parts, tmp_path, **settings):
    pieces = []
    for number, part in enumerate(parts):
        tokens = np.array(part, np.int64)
        path = tmp_path / f"{number}"
        opening = partial(held, tokens)
        pieces.append(TokenPiece(path, str(number), len(part), tokens.dtype, opening, False))
    return JoinedPieces(pieces, **settings)


@given(
    parts=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=8), data=st.data()
)
def test_a_slice_of_pieces_is_the_slice_of_all(tmp_path_factory, parts, data):
    whole = [token for part in parts for token in part]
    joined = laid(parts, tmp_path_factory.getbasetemp(), max_open=2)
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(0, len(whole) + 3))
    assert joined[begin:end].tolist() == whole[begin:end] and len(joined) == len(whole)
    assert len(joined._open_pieces) <= 2


def test_the_piece_used_longest_ago_is_let_go_first(tmp_path):
    joined = laid([[1], [2], [3]], tmp_path, max_open=2)
    for place in (0, 1, 0, 2):
        joined[place : place + 1]
    assert set(joined._open_pieces) == {0, 2}


def test_more_files_than_may_be_open_are_read(tmp_path):
    for number in range(300):
        write_raw(tmp_path / f"{number:03}.bin", [number] * 4)
    source = TokenShards(tmp_path, 4)
    before = len(os.listdir("/proc/self/fd"))
    rows = source.fetch(np.arange(len(source)))[0]
    assert rows[:, 0].tolist() == list(range(299))
    assert len(os.listdir("/proc/self/fd")) - before <= 260


def test_a_shard_that_was_cut_while_it_is_read_is_refused(tmp_path):
    path = write_raw(tmp_path / "a.bin", range(100))
    source = TokenShards(path, 9)
    os.truncate(path, 20)
    with pytest.raises(DataError, match=r"a.bin' has 20 bytes and had 200 when it was opened. Res"):
        source.fetch(np.array([9]))


def test_a_piece_that_is_not_as_long_as_it_was_said_to_be_is_refused(tmp_path):
    opening = partial(held, np.arange(3))
    with pytest.raises(DataError, match=r"x holds 3 ids, and 5 were counted at the start. It was"):
        JoinedPieces([TokenPiece(tmp_path, "x", 5, np.dtype("int64"), opening, False)])
