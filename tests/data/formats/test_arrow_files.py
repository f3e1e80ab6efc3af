import numpy as np
import pytest

from stepladder.data.formats.arrow_files import RecordBatches, arrow_pieces
from stepladder.errors import DataError

from .shard_writers import documents, write_feather, write_stream

ROWS = [row * 50 for row in documents(30)]


@pytest.mark.parametrize("write", [write_feather, write_stream])
def test_a_file_that_is_not_compressed_is_one_piece_that_lies_in_its_map(tmp_path, write):
    path = write(tmp_path / "a.arrow", ROWS)
    (piece,) = arrow_pieces(path, None)
    held = piece.open()
    assert held.tokens[0 : piece.length].tolist() == np.concatenate(ROWS).tolist()
    batches = RecordBatches(path, None)
    assert not piece.decoded and batches.is_mapped(batches.opened(0))
    starts = np.cumsum([0, *(len(row) for row in ROWS[:-1])])
    assert held.documents.between(0, piece.length).tolist() == starts.tolist()


def test_a_compressed_file_is_decoded_batch_by_batch(tmp_path):
    pieces = arrow_pieces(write_feather(tmp_path / "a.feather", ROWS, "lz4"), None)
    assert len(pieces) == 10 and all(piece.decoded for piece in pieces)
    assert pieces[9].open().tokens.tolist() == np.concatenate(ROWS[27:]).tolist()


def refusal(path, column=None):
    with pytest.raises(DataError) as refused:
        arrow_pieces(path, column)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path):
    path = write_stream(tmp_path / "a.arrow", ROWS, compression="zstd")
    assert "is a compressed stream, which can only be read from its beginning" in refusal(path)
    path = write_feather(tmp_path / "b.arrow", ROWS)
    assert "has no column 'ids'" in refusal(path, "ids")
    path.write_bytes(path.read_bytes()[:-100])
    assert "cannot be read" in refusal(path)
    path = write_stream(tmp_path / "c.arrow", ROWS)
    path.write_bytes(path.read_bytes()[:-500])
    assert "cannot be read" in refusal(path)
    path.write_bytes(b"")
    assert "cannot be read" in refusal(path)
