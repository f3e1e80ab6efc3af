"""Tables of token lists, one document a row, in Parquet files.

A Parquet file's footer says what it contains, so opening reads no ids. A row group is decoded when
it is first used.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.data.packing import DocumentStarts
from stepladder.errors import DataError, nearest

from .data_files import unreadable_data
from .optional_packages import import_optional
from .token_pieces import OpenPiece, TokenPiece

COLUMNS = ("input_ids", "tokens")  # tried in this order if none is named


def import_arrow(module: str) -> Any:
    return import_optional(module, field="token table", install="stepladder[data]")


def parquet_pieces(path: Path, column: str | None) -> list[TokenPiece]:
    """Every row group of a Parquet file that holds ids."""
    file = _parquet(path)
    with file:
        schema, contents = file.schema_arrow, file.metadata
        column = choose_column(path, schema, column)
        kind = id_type(path, schema, column)
        leaf = _leaf(contents, column)
        found = []
        for number in range(contents.num_row_groups):
            length = _num_ids(contents.row_group(number).column(leaf))
            opening = partial(_open_row_group, path, number, column)
            if length is None:  # no statistics, so decode and count
                length = len(opening().tokens)
            name = f"row group {number} of '{path}'"
            found.append(
                TokenPiece(path, name, length, kind, opening, documents=True, decoded=True)
            )
    return nonempty_pieces(found, path, column)


def _open_row_group(path: Path, number: int, column: str) -> OpenPiece:
    file = _parquet(path)
    with file:
        try:
            rows = file.read_row_group(number, columns=[column]).column(0).combine_chunks()
        except (OSError, ValueError) as error:
            raise unreadable_data(path, "token table", error) from error
    tokens, starts = flatten_ids(rows, path, column)
    return OpenPiece(tokens, DocumentStarts(starts))


def flatten_ids(rows: Any, path: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all rows, concatenated, and where each non-empty row begins."""
    if not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if hasattr(rows, "num_chunks"):  # more than one array can hold, or none
        return _concatenate([flatten_ids(chunk, path, column) for chunk in rows.chunks])
    ids = rows.flatten()  # without the values behind null rows
    if ids.null_count:
        raise DataError(
            "token table",
            f"column '{column}' of '{path}' holds {ids.null_count} missing ids",
            "Write it again without them.",
        )
    counted = import_arrow("pyarrow.compute").list_value_length(rows).fill_null(0)
    lengths = counted.to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    return ids.to_numpy(zero_copy_only=True), starts[lengths > 0]


def _concatenate(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    borders = np.cumsum([0, *(len(tokens) for tokens, _ in parts)])
    starts = [starts + border for (_, starts), border in zip(parts, borders)]
    return np.concatenate([tokens for tokens, _ in parts]), np.concatenate(starts)


def _parquet(path: Path) -> Any:
    try:
        return import_arrow("pyarrow.parquet").ParquetFile(str(path), memory_map=True)
    except (OSError, ValueError) as error:
        raise unreadable_data(path, "token table", error) from error


def choose_column(path: Path, schema: Any, wanted: str | None) -> str:
    choices = (wanted,) if wanted else COLUMNS
    for name in choices:
        if name in schema.names:
            return name
    there = ", ".join(schema.names)
    raise DataError(
        "column",
        f"'{path}' has no column {' or '.join(repr(name) for name in choices)}; it has {there}",
        nearest(choices[0], schema.names),
    )


def id_type(path: Path, schema: Any, column: str) -> np.dtype:
    types, held = import_arrow("pyarrow.types"), schema.field(column).type
    lists = types.is_list(held) or types.is_large_list(held) or types.is_fixed_size_list(held)
    if not lists or not types.is_integer(held.value_type):
        raise DataError(
            "column",
            f"'{column}' of '{path}' holds {held}, not lists of whole numbers",
            "Name the column of token ids: column='...' (data.column in a recipe).",
        )
    return np.dtype(held.value_type.to_pandas_dtype())


def _leaf(contents: Any, column: str) -> int:
    """The number of the column that holds the ids inside the lists."""
    paths = [contents.schema.column(number).path for number in range(len(contents.schema))]
    inside = [path for path in paths if path.startswith(f"{column}.")]
    return paths.index(min(inside, key=len))  # a column may be named `a.b` beside one named `a`


def _num_ids(chunk: Any) -> int | None:
    """The number of ids in a row group's column: its entries less those for empty rows."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return None
    return int(chunk.num_values) - int(statistics.null_count)


def nonempty_pieces(pieces: list[TokenPiece], path: Path, column: str) -> list[TokenPiece]:
    found = [piece for piece in pieces if piece.length]
    if not found:
        raise DataError(
            "token table",
            f"column '{column}' of '{path}' holds no ids in {len(pieces)} row groups",
            "Write it again, or leave the file out.",
        )
    return found
