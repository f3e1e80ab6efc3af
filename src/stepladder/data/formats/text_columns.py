"""Text columns of Parquet and Arrow tables: one document a row, tokenized when opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .arrow_files import FILE_MAGIC
from .data_files import unreadable_data
from .find_shards import find_shards
from .token_tables import COLUMNS, import_arrow

TEXT_COLUMN = "text"  # used if no column is named and there are no ids
TABLES = (".parquet", ".arrow", ".feather")


def find_text_column(name: str, column: str) -> str:
    """The text column of the named table; empty if it has ids or is no table."""
    first = find_shards(name)[0]
    if first.suffix not in TABLES:
        return ""
    schema = _open(first).schema_arrow if first.suffix == ".parquet" else _open(first).schema
    wanted = column or next((one for one in (*COLUMNS, TEXT_COLUMN) if one in schema.names), "")
    if wanted not in schema.names:
        return ""
    types, held = import_arrow("pyarrow.types"), schema.field(wanted).type
    text = types.is_string(held) or types.is_large_string(held)
    return wanted if text else ""


def read_texts(name: str, column: str) -> list[bytes]:
    """Every non-empty row of all files, in order."""
    return [text for path in find_shards(name) for text in _rows(path, column) if text]


def _rows(path: Path, column: str) -> Iterator[bytes]:
    try:
        for batch in _batches(path, column):
            for value in batch.column(batch.schema.get_field_index(column)).to_pylist():
                yield (value or "").encode()
    except (OSError, ValueError, KeyError) as error:
        raise unreadable_data(path, "token table", error) from error


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
            return import_arrow("pyarrow.parquet").ParquetFile(str(path), memory_map=True)
        source, ipc = import_arrow("pyarrow").memory_map(str(path)), import_arrow("pyarrow.ipc")
        indexed = source.read(len(FILE_MAGIC)) == FILE_MAGIC
        source.seek(0)
        return ipc.open_file(source) if indexed else ipc.open_stream(source)
    except (OSError, ValueError) as error:
        raise unreadable_data(path, "token table", error) from error
