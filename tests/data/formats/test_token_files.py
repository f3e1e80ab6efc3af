import mmap
import pickle
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.data import TokenFile
from stepladder.data.formats.token_files import TokenWindows
from stepladder.errors import DataError


def write(path, tokens, dtype="uint16"):
    np.asarray(tokens, dtype).tofile(path)
    return path


@given(num_tokens=st.integers(2, 400), length=st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_every_token_is_a_target_at_most_once_and_follows_its_input(num_tokens, length):
    if num_tokens <= length:
        return
    windows = TokenWindows(np.arange(num_tokens), length)
    inputs, targets = windows.fetch(np.arange(len(windows)))
    assert torch.equal(inputs + 1, targets)
    assert targets.flatten().tolist() == list(range(1, len(windows) * length + 1))
    assert num_tokens - 1 - len(windows) * length < length


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_raw_file_gives_its_windows(tmp_path, dtype):
    source = TokenFile(write(tmp_path / "a.bin", range(21), dtype), 5, dtype)
    assert len(source) == 4
    inputs, targets = source[3]
    assert inputs.tolist() == [15, 16, 17, 18, 19] and targets.tolist() == [16, 17, 18, 19, 20]
    assert inputs.dtype == torch.int64
    assert [row.tolist() for row in source.fetch(np.array([3, 0]))[0]] == [
        [15, 16, 17, 18, 19],
        [0, 1, 2, 3, 4],
    ]


def test_a_numpy_file_is_mapped_not_read(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100, dtype=np.uint16))
    source = TokenFile(tmp_path / "a.npy", 9)
    assert isinstance(source._rows.tokens.opened(0).tokens.base.obj, mmap.mmap)
    assert source[10][1].tolist() == list(range(91, 100))


def test_iterating_over_a_file_ends(tmp_path):
    assert len(list(TokenFile(write(tmp_path / "a.bin", range(21)), 5))) == 4


def test_a_pickled_file_carries_its_path_and_not_its_tokens(tmp_path):
    tokens = np.full(100_000, 5)
    tokens[12_345] = 8
    source = TokenFile(write(tmp_path / "a.bin", tokens), 10, document_end=8)
    sent = pickle.dumps(source)
    assert len(sent) < 2000
    again = pickle.loads(sent)
    assert torch.equal(again[1234][1], source[1234][1]) and len(again) == len(source)


@pytest.mark.soak
def test_reading_prints_its_rate(tmp_path):
    source = TokenFile(write(tmp_path / "a.bin", np.zeros(4_000_000)), 1024)
    began = time.perf_counter()
    for start in range(0, 3840, 32):
        source.fetch(np.arange(start, start + 32))
    rate = 3840 * 1024 / (time.perf_counter() - began)
    print(f"{rate / 1e6:.0f} M tokens/s")
    assert rate > 0


def test_a_missing_file_names_the_nearest_folder(tmp_path):
    (tmp_path / "tokens.bin").touch()
    with pytest.raises(DataError) as refused:
        TokenFile(tmp_path / "tokns.bin", 8)
    assert f"the nearest folder that does is '{tmp_path}'" in str(refused.value)
    assert "Did you mean 'tokens.bin'?" in str(refused.value)
    with pytest.raises(
        DataError, match=r"the nearest folder that does is .* It holds 'tokens.bin'"
    ):
        TokenFile(tmp_path / "far" / "away" / "x.bin", 8)


def test_a_file_shorter_than_a_window_says_both_numbers(tmp_path):
    path = write(tmp_path / "a.bin", range(8))
    with pytest.raises(
        DataError, match=r"has 8 tokens and one window needs 9. Use length=7 or less"
    ):
        TokenFile(path, 8)
    assert len(TokenFile(path, 7)) == 1
    with pytest.raises(DataError, match=r"has 1 tokens and one window needs 9. Give more text"):
        TokenFile(write(tmp_path / "b.bin", [1]), 8)


def test_an_empty_file_and_an_empty_window_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"empty.bin' is empty\. Write it again"):
        TokenFile(write(tmp_path / "empty.bin", []), 8)
    with pytest.raises(DataError, match=r"length: 0 is not a number of tokens"):
        TokenFile(write(tmp_path / "a.bin", range(9)), 0)
    with pytest.raises(DataError, match=r"tokens: tokens is empty. Give a file with at least two"):
        TokenWindows(np.zeros(0, np.uint8), 4)


def test_a_file_of_half_a_token_names_its_bytes(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(101))
    with pytest.raises(DataError, match=r"101 bytes, which is not a whole number of uint16 ids"):
        TokenFile(tmp_path / "a.bin", 8)


def test_an_unknown_type_of_id_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(DataError, match=r"dtype: 'uint61' is not a type of token id. Did you mean"):
        TokenFile(write(tmp_path / "a.bin", range(9)), 4, "uint61")


def test_a_folder_or_a_pickled_array_cannot_be_read_as_tokens(tmp_path):
    with pytest.raises(DataError, match=r"token file: .* cannot be read"):
        TokenFile(tmp_path, 8)
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"token file: .*a.npy' cannot be read .*Python objects"):
        TokenFile(tmp_path / "a.npy", 8)


def test_an_array_that_is_not_a_row_of_integers_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    with pytest.raises(
        DataError, match=r"float64 of shape \(3, 4\). Save one flat row of integers"
    ):
        TokenFile(tmp_path / "a.npy", 8)


def test_a_vocabulary_the_type_cannot_hold_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"uint16 holds ids up to 65535 and the vocabulary has 128256"
    ):
        TokenFile(write(tmp_path / "a.bin", range(99)), 8, vocabulary=128256)


def test_a_token_beyond_the_vocabulary_is_found_at_once_or_when_it_is_read(tmp_path):
    path = write(tmp_path / "a.bin", range(100))
    with pytest.raises(DataError, match=r"holds token 99 and the vocabulary ends at 49"):
        TokenFile(path, 8, vocabulary=50)
    TokenFile(path, 8, vocabulary=100)
    rare = np.zeros(1 << 22)
    rare[3_999_999] = 700
    hidden = TokenFile(write(tmp_path / "b.bin", rare), 8, vocabulary=500)
    with pytest.raises(DataError, match=r"holds token 700 and the vocabulary ends at 499"):
        hidden.fetch(np.array([3_999_999 // 8]))


def test_a_file_of_shorter_ids_read_as_longer_ones_is_caught_by_the_vocabulary(tmp_path):
    path = write(tmp_path / "a.bin", np.arange(1000) % 300)
    with pytest.raises(DataError, match=r"or the dtype the file was written with"):
        TokenFile(path, 8, "uint32", vocabulary=300)


@pytest.mark.parametrize(
    ("written", "read", "zeros", "size"),
    [
        ("uint32", "uint16", "a zero", 4),
        ("int64", "uint16", "3 zeros", 8),
        ("int64", "uint32", "a zero", 8),
    ],
)
def test_a_file_of_longer_ids_read_as_shorter_ones_is_refused(tmp_path, written, read, zeros, size):
    path = write(tmp_path / "a.bin", np.arange(3000) % 300, written)
    said = rf"dtype: .* read as {read} has {zeros} after each id, so each was written in {size} byt"
    with pytest.raises(DataError, match=said):
        TokenFile(path, 8, read, vocabulary=300)
    TokenFile(path, 8, written, vocabulary=300)
    TokenFile(write(tmp_path / "b.bin", [1, 0] * 3000), 8)  # zeros between a few ids may be meant


@pytest.mark.parametrize(("end", "vocabulary"), [(-1, None), (70_000, None), (300, 300)])
def test_an_end_of_documents_that_no_id_can_be_is_refused(tmp_path, end, vocabulary):
    path = write(tmp_path / "a.bin", np.arange(1000) % 300)
    with pytest.raises(DataError, match=rf"document_end: {end} is not an id: they go from 0 to"):
        TokenFile(path, 8, document_end=end, vocabulary=vocabulary)


def test_a_window_says_where_it_is(tmp_path):
    path = write(tmp_path / "a.bin", range(99))
    assert TokenFile(path, 8).where(2) == f"tokens 16 to 24 of '{path}'"


def test_an_id_below_zero_is_refused(tmp_path):
    path = write(tmp_path / "a.bin", [1, -7] * 50, "int32")
    with pytest.raises(DataError, match=r"a.bin' holds the id -7, which is below 0. Name the dty"):
        TokenFile(path, 8, "int32", vocabulary=50)
