import pyarrow as pa
import pytest

from stepladder.data.formats.token_tables import parquet_pieces
from stepladder.errors import DataError

from .shard_writers import documents, write_parquet

KINDS = {
    "lists": pa.list_(pa.int64()),
    "large lists": pa.large_list(pa.uint16()),
    "lists of one length": pa.list_(pa.int32(), 4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_list_gives_its_ids_and_documents(tmp_path, kind):
    rows = [[number] * 4 for number in range(8)]
    pieces = parquet_pieces(
        write_parquet(tmp_path / "a.parquet", rows, "tokens", KINDS[kind]), None
    )
    assert [piece.length for piece in pieces] == [12, 12, 8]
    held = pieces[1].open()
    assert held.tokens.tolist() == [3] * 4 + [4] * 4 + [5] * 4
    assert held.documents.between(0, 12).tolist() == [0, 4, 8]


@pytest.mark.parametrize("counted", [True, False])
def test_empty_and_missing_rows_hold_no_ids_and_an_empty_row_group_is_left_out(tmp_path, counted):
    rows = [[1, 2], [], None, [3], None, [], [], None, [], [4]]
    path = write_parquet(tmp_path / "a.parquet", rows, group=3, write_statistics=counted)
    pieces = parquet_pieces(path, None)
    assert [piece.name.split(" of")[0] for piece in pieces] == [
        "row group 0",
        "row group 1",
        "row group 3",
    ]
    assert [piece.open().tokens.tolist() for piece in pieces] == [[1, 2], [3], [4]]
    assert pieces[0].open().documents.between(0, 9).tolist() == [0]


def refusal(path, column=None):
    with pytest.raises(DataError) as refused:
        for piece in parquet_pieces(path, column):
            piece.open()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_column_may_have_a_dot_in_its_name(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a.b": [[1, 2], [3]], "a": [[4], [5]]}), path)
    for column, ids in (("a.b", [1, 2, 3]), ("a", [4, 5])):
        (piece,) = parquet_pieces(path, column)
        assert piece.open().tokens.tolist() == ids and piece.length == len(ids)


def test_a_table_without_ids_is_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [[], [], []])
    assert "column 'input_ids' of" in refusal(path) and "holds no ids in 1 row groups" in refusal(
        path
    )


def test_a_column_that_is_not_there_or_holds_something_else_is_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", documents(5), "token_ids")
    said = refusal(path)
    assert "has no column 'input_ids' or 'tokens'; it has id, token_ids" in said
    assert refusal(path, "tokenids").endswith("Did you mean 'token_ids'?")
    assert "'id' of" in refusal(path, "id") and "holds int64, not lists of whole" in refusal(
        path, "id"
    )
    floats = write_parquet(tmp_path / "b.parquet", [[1.5]], kind=pa.list_(pa.float32()))
    assert "not lists of whole numbers. Name the column of token ids" in refusal(floats)


def test_missing_ids_are_refused_when_they_are_read(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [[1, None, 2]], write_statistics=False)
    assert "holds 1 missing ids. Write it again without them." in refusal(path)


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", documents(50))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "token table: " in refusal(path) and "cannot be read" in refusal(path)
    path.write_bytes(whole[:60] + bytes(60) + whole[120:])
    assert "cannot be read" in refusal(path)
