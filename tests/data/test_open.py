"""A recipe's data, opened by what its name leads to."""

import numpy as np
import pytest

from stepladder.data import open_source
from stepladder.errors import DataError
from stepladder.plan import DataChoice


def opened(source, split="train", **settings):
    return open_source(
        DataChoice(source=str(source), **settings), length=16, vocabulary=256, split=split
    )


def test_python_is_the_standard_librarys_source():
    inputs, targets = opened("python")[0]
    assert inputs.tolist()[1:] == targets.tolist()[:-1]
    assert len(opened("python")) > 8 * len(opened("python", "validation"))


def test_digits_come_in_two_parts():
    assert len(opened("digits")) + len(opened("digits", "validation")) == 1797


def test_a_folder_is_text_and_a_bin_file_is_tokens(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be " * 100)
    np.arange(200, dtype=np.uint16).tofile(tmp_path / "t.bin")
    assert bytes(opened(tmp_path)[0][0].tolist()).startswith(b"to be or not")
    assert len(opened(tmp_path / "t.bin")) == 12 - 1


def test_packed_documents_come_with_what_the_models_read(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("words " * 40)
    inputs, _ = opened(tmp_path, packed=True)[0]
    assert set(inputs) == {"tokens", "documents", "positions"}


def test_a_name_that_is_nothing_offers_the_nearest():
    with pytest.raises(DataError) as raised:
        opened("pyhton")
    assert str(raised.value) == (
        "data.source: 'pyhton' is neither a source nor a path. Did you mean 'python'?"
    )


def test_a_missing_folder_says_so(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        opened(tmp_path / "nowhere")
    with pytest.raises(DataError, match="mnist"):
        opened(f"mnist:{tmp_path}")
    with pytest.raises(DataError, match="cifar"):
        opened(f"cifar:{tmp_path}", "validation")
    with pytest.raises(DataError, match="images"):
        opened(f"images:{tmp_path}")
