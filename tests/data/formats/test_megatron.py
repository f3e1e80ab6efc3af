import numpy as np
import pytest

from stepladder.data.formats.megatron import MegatronIndex, indexed_piece
from stepladder.errors import DataError

from .shard_writers import documents, write_megatron


@pytest.mark.parametrize("each", [1, 3])
def test_documents_between_two_places_are_those_of_the_index(tmp_path, each):
    rows = documents(60)
    index = MegatronIndex(
        write_megatron(tmp_path / "a.bin", rows, sequences_each=each).with_suffix(".idx")
    )
    ends = np.cumsum([len(row) for row in rows])
    starts = np.concatenate([[0], ends[:-1]])
    assert index.tokens == ends[-1]
    for begin, end in ((0, 5), (17, 60), (3, 3), (0, 1000), (ends[-1], ends[-1] + 5)):
        found = index.between(begin, end).tolist()
        assert found == [start for start in starts.tolist() if begin <= start < end]


def test_empty_documents_do_no_harm(tmp_path):
    rows = [np.array(row, int) for row in ([1, 2], [], [3], [])]
    held = indexed_piece(write_megatron(tmp_path / "a.bin", rows), None).open()
    assert held.tokens.tolist() == [1, 2, 3] and set(held.documents.between(0, 3)) <= {0, 2}


def refusal(path, dtype=None):
    with pytest.raises(DataError) as refused:
        indexed_piece(path, dtype)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    path = write_megatron(tmp_path / "a.bin", [[1, 2], [3, 4, 5]])
    index, good = path.with_suffix(".idx"), path.with_suffix(".idx").read_bytes()
    path.write_bytes(path.read_bytes()[:-4])
    assert "tells of 5 ids, 20 bytes, and the file has 16. Write both files again." in refusal(path)
    path.write_bytes(bytes(20))
    assert "dtype: uint16 is asked for and " in refusal(path, "uint16")
    index.write_bytes(good[:-8])
    assert f"has {len(good) - 8} bytes and its header asks for {len(good)}" in refusal(path)
    index.write_bytes(b"other" + good)
    assert "does not begin as Megatron's indexes do" in refusal(path)
    index.write_bytes(good[:17] + bytes([7]) + good[18:])
    assert "is of version 1 with ids of type 7" in refusal(path)
    index.write_bytes(b"")
    assert "token index: " in refusal(path) and "cannot be read" in refusal(path)
    index.unlink()
    assert "a.idx' does not exist" in refusal(path)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (
            [0, 1, 99, 3, 4],
            "a.idx' has a document that begins in sequence 99. Write both files again.",
        ),
        (
            [0, 3, 1, 3, 4],
            "a.idx' has documents out of order between 1 and 12. Write both files again.",
        ),
    ],
)
def test_a_table_of_documents_that_cannot_be_is_refused_when_it_is_read(tmp_path, bounds, said):
    path = write_megatron(tmp_path / "a.bin", [[1, 2, 3]] * 4)
    index = path.with_suffix(".idx")
    wrong = np.array(bounds, "<i8").tobytes()
    index.write_bytes(index.read_bytes()[: -len(wrong)] + wrong)
    documents = indexed_piece(path, None).open().documents
    with pytest.raises(DataError) as refused:
        documents.between(1, 12)
    assert said in str(refused.value)
