import numpy as np
import pytest
import torch

from stepladder.data import text_corpus
from stepladder.errors import DataError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_bytes(b"b" * 30)
    (tmp_path / "a.txt").write_bytes(b"a" * 50)
    (tmp_path / "c.bin").write_bytes(b"!" * 99)
    (tmp_path / "z.txt").write_bytes(b"z" * 20)
    return tmp_path


def test_the_standard_library_is_a_corpus_of_python_without_tests():
    source = text_corpus(length=128, limit_bytes=400_000)
    text = source.tokens.tobytes().decode(errors="replace")
    assert "def " in text and len(source.tokens) == 360_000
    inputs, targets = source[0]
    assert inputs.max() < 256 and torch.equal(inputs[1:], targets[:-1])
    assert np.array_equal(source.tokens, text_corpus(length=128, limit_bytes=400_000).tokens)


def test_a_folder_is_read_in_the_order_of_its_paths(folder):
    source = text_corpus(folder, length=9)
    assert source.tokens.tobytes() == b"a" * 50 + b"b" * 30 + b"z" * 10
    assert text_corpus(folder, length=9, suffixes=(".bin",)).tokens.tobytes() == b"!" * 90


def test_the_splits_share_no_byte_and_miss_none(folder):
    train, held = (text_corpus(folder, length=4, split=part) for part in ("train", "validation"))
    assert train.tokens.tobytes() + held.tokens.tobytes() == b"a" * 50 + b"b" * 30 + b"z" * 20
    assert len(held.tokens) == 10


def test_a_limit_ends_the_corpus(folder):
    source = text_corpus(folder, length=4, limit_bytes=60)
    assert source.tokens.tobytes() == b"a" * 50 + b"b" * 4


def test_a_packed_corpus_keeps_files_apart(folder):
    source = text_corpus(folder, length=88, packed=True)
    inputs, targets = source[0]
    assert inputs["documents"].tolist() == [0] * 50 + [1] * 30 + [2] * 8
    assert (targets == -100).nonzero().flatten().tolist() == [49, 79]
    (folder / "zz.txt").write_bytes(b"y" * 6)
    held = text_corpus(folder, length=9, split="validation", packed=True)
    assert held[0][0]["documents"].tolist() == [0] * 4 + [1] * 5
    assert held.documents.starts.tolist() == [0, 4]


def test_a_folder_without_text_says_what_it_looked_for(folder):
    with pytest.raises(
        DataError, match=r"corpus: .* holds no text in files ending \.md\. Name the"
    ):
        text_corpus(folder, suffixes=(".md",))


def test_a_folder_shorter_than_a_window_says_both_numbers(folder):
    with pytest.raises(
        DataError, match=r"the train part of .* has 90 tokens and one window needs 101"
    ):
        text_corpus(folder, length=100)


def test_a_file_that_cannot_be_read_is_named(folder):
    (folder / "broken.txt").symlink_to(folder / "nowhere")
    with pytest.raises(DataError, match=r"corpus: '.*broken.txt' cannot be read \(No such file"):
        text_corpus(folder)


def test_a_missing_folder_a_file_and_a_wrong_split_are_refused(folder):
    with pytest.raises(DataError, match=r"corpus: .*sbu' does not exist; .* Did you mean 'sub'"):
        text_corpus(folder / "sbu")
    with pytest.raises(DataError, match=r"a.txt' is a file. Give its folder"):
        text_corpus(folder / "a.txt")
    with pytest.raises(
        DataError, match=r"split: 'valid' is not a part of the corpus. Did you mean"
    ):
        text_corpus(folder, length=4, split="valid")
