"""A recipe's data, opened by what its name leads to."""

import numpy as np
import pytest

from stepladder.data import batches, open_source
from stepladder.errors import DataError
from stepladder.plan.recipe import DataChoice
from tests.data.formats.shard_writers import documents, write_parquet, write_raw


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
    assert bytes(opened(tmp_path)[0][0].tolist()).startswith(b"to be or not")
    np.arange(200, dtype=np.uint16).tofile(tmp_path / "t.bin")
    assert len(opened(tmp_path / "t.bin")) == len(opened(f"{tmp_path}/*.bin")) == 12 - 1
    assert bytes(opened(f"text:{tmp_path}")[0][0].tolist()).startswith(b"to be or not")
    with pytest.raises(DataError, match=r"holds token files and text, such as 'a.txt'. Write a p"):
        opened(tmp_path)
    (tmp_path / "a.txt").unlink()
    assert len(opened(tmp_path, "validation")) == 1


def test_sources_are_mixed_by_the_weights_before_them(tmp_path):
    for name, first in (("a", 0), ("b", 100)):
        write_raw(tmp_path / f"{name}.bin", np.arange(700) % 50 + first)
    source = f"3: {tmp_path}/a.bin, 1 :{tmp_path}/b.bin"
    with batches(opened(source), size=8, stop=40, workers=0) as feed:
        rows = [batch.inputs[:, 0].ge(100).sum().item() for batch in feed]
    assert rows == [2] * 5
    with batches(opened(source), size=8, start=16, stop=24, workers=0) as feed:
        assert next(feed).position == 16
    with pytest.raises(DataError, match=r"'nothing' has no weight and others have. Write each as"):
        opened(f"3: {tmp_path}/a.bin, nothing")


def test_raw_tokens_are_packed_by_the_id_that_ends_a_document(tmp_path):
    write_raw(tmp_path / "a.bin", [*range(1, 20), 0] * 30, "uint32")
    inputs, _ = opened(tmp_path / "a.bin", dtype="uint32", document_end=0)[0]
    assert set(inputs) == {"tokens", "documents", "positions"}
    with pytest.raises(DataError, match=r"does not say where documents begin"):
        opened(tmp_path / "a.bin", dtype="uint32", packed=True)
    with pytest.raises(DataError, match=r"data.dtype: 'uint8' says nothing of 'python', which is"):
        opened("python", dtype="uint8")


def test_a_column_of_a_table_is_named(tmp_path):
    write_parquet(tmp_path / "a.parquet", documents(90), "ids")
    assert len(opened(tmp_path / "a.parquet", column="ids")) > 20


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


@pytest.mark.parametrize("word", ["text", "images", "mnist", "cifar", "text:", "text: "])
def test_a_word_that_needs_a_folder_never_means_the_working_folder(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("words that nobody asked for " * 100)
    name = word.partition(":")[0]
    with pytest.raises(DataError) as raised:
        opened(word)
    assert str(raised.value) == f"data.source: '{name}' names no folder. Write '{name}:FOLDER'."


def test_a_folder_that_is_called_as_a_word_is_named_by_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("to be or not to be " * 100)
    with pytest.raises(DataError, match=r"Write 'text:FOLDER', or './text' for the folder of that"):
        opened("text")
    assert bytes(opened("./text")[0][0].tolist()).startswith(b"to be or not")
    with pytest.raises(DataError, match=r"'python' has no folder to name. Write 'python' alone."):
        opened("python:text")


def test_a_missing_folder_says_so(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        opened(tmp_path / "nowhere")
    with pytest.raises(DataError, match="mnist"):
        opened(f"mnist:{tmp_path}")
    with pytest.raises(DataError, match="cifar"):
        opened(f"cifar:{tmp_path}", "validation")
    with pytest.raises(DataError, match="images"):
        opened(f"images:{tmp_path}")
