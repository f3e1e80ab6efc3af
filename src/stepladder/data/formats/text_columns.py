"""Text in a column of tables, as `datasets` keeps it: one document a row, encoded when opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .arrow_files import FILE_MAGIC
from .data_files import unreadable
from .find_shards import find_shards
from .token_tables import COLUMNS, arrow

TEXT_COLUMN = "text"  # looked for where none is named and there are no ids
TABLES = (".parquet", ".arrow", ".feather")


def column_of_text(name: str, column: str) -> str:
    """The column of text that a name leads to; empty: it leads to ids, or to no table."""
    first = find_shards(name)[0]
    if first.suffix not in TABLES:
        return ""
    schema = _open(first).schema_arrow if first.suffix == ".parquet" else _open(first).schema
    wanted = column or next((one for one in (*COLUMNS, TEXT_COLUMN) if one in schema.names), "")
    if wanted not in schema.names:
        return ""
    types, held = arrow("pyarrow.types"), schema.field(wanted).type
    text = types.is_string(held) or types.is_large_string(held)
    return wanted if text else ""


def read_texts(name: str, column: str) -> list[bytes]:
    """Every row that is not empty, of all files in their order."""
    return [text for path in find_shards(name) for text in _rows(path, column) if text]


def _rows(path: Path, column: str) -> Iterator[bytes]:
    try:
        for batch in _batches(path, column):
            for value in batch.column(batch.schema.get_field_index(column)).to_pylist():
                yield (value or "").encode()
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(path, "token table", error) from error


def _batches(path: Path, column: str) -> Iterator[Any]:
    table = _open(path)
    if path.suffix == ".parquet":
        yield from table.iter_batches(columns=[column])
    elif hasattr(table, "num_record_batches"):
        yield from map(table.get_batch, range(table.num_record_batches))
    else:
        yield from table


def _open(path: Path) -> Any:
    try:
        if path.suffix == ".parquet":
            return arrow("pyarrow.parquet").ParquetFile(str(path), memory_map=True)
        source, ipc = arrow("pyarrow").memory_map(str(path)), arrow("pyarrow.ipc")
        indexed = source.read(len(FILE_MAGIC)) == FILE_MAGIC
        source.seek(0)
        return ipc.open_file(source) if indexed else ipc.open_stream(source)
    except (OSError, ValueError) as error:
        raise unreadable(path, "token table", error) from error
