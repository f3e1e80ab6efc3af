"""Tables of token lists: one column of ids, one document a row; and Parquet, their usual file.

What a Parquet file holds is known from its table of contents, so opening reads no ids. A row group
is decoded when it is first asked for.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.data.packing import Listed
from stepladder.errors import DataError, nearest

from .data_files import unreadable
from .optional_packages import package
from .token_pieces import Opened, Piece

COLUMNS = ("input_ids", "tokens")  # looked for in this order where none is named


def arrow(module: str) -> Any:
    return package(module, field="token table", install="stepladder[data]")


def parquet_pieces(path: Path, column: str | None) -> list[Piece]:
    """Every row group of a Parquet file that holds ids."""
    file = _parquet(path)
    with file:
        schema, contents = file.schema_arrow, file.metadata
        column = choose_column(path, schema, column)
        kind = id_type(path, schema, column)
        leaf = _leaf(contents, column)
        found = []
        for number in range(contents.num_row_groups):
            length = _counted(contents.row_group(number).column(leaf))
            opening = partial(_open_row_group, path, number, column)
            if length is None:  # its writer counted nothing, so we do
                length = len(opening().tokens)
            name = f"row group {number} of '{path}'"
            found.append(Piece(path, name, length, kind, opening, documents=True, decoded=True))
    return with_ids(found, path, column)


def _open_row_group(path: Path, number: int, column: str) -> Opened:
    file = _parquet(path)
    with file:
        try:
            rows = file.read_row_group(number, columns=[column]).column(0).combine_chunks()
        except (OSError, ValueError) as error:
            raise unreadable(path, "token table", error) from error
    tokens, starts = values(rows, path, column)
    return Opened(tokens, Listed(starts))


def values(rows: Any, path: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all rows end to end, and where each row that has any begins."""
    if not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if hasattr(rows, "num_chunks"):  # more than one array can hold, or none
        return _joined([values(chunk, path, column) for chunk in rows.chunks])
    ids = rows.flatten()  # without what lies behind missing rows
    if ids.null_count:
        raise DataError(
            "token table",
            f"column '{column}' of '{path}' holds {ids.null_count} missing ids",
            "Write it again without them.",
        )
    counted = arrow("pyarrow.compute").list_value_length(rows).fill_null(0)
    lengths = counted.to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    return ids.to_numpy(zero_copy_only=True), starts[lengths > 0]


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    borders = np.cumsum([0, *(len(tokens) for tokens, _ in parts)])
    starts = [starts + border for (_, starts), border in zip(parts, borders)]
    return np.concatenate([tokens for tokens, _ in parts]), np.concatenate(starts)


def _parquet(path: Path) -> Any:
    try:
        return arrow("pyarrow.parquet").ParquetFile(str(path), memory_map=True)
    except (OSError, ValueError) as error:
        raise unreadable(path, "token table", error) from error


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
    types, held = arrow("pyarrow.types"), schema.field(column).type
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


def _counted(chunk: Any) -> int | None:
    """The ids in a column of a row group: its entries less those that stand for an empty row."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return None
    return int(chunk.num_values) - int(statistics.null_count)


def with_ids(pieces: list[Piece], path: Path, column: str) -> list[Piece]:
    found = [piece for piece in pieces if piece.length]
    if not found:
        raise DataError(
            "token table",
            f"column '{column}' of '{path}' holds no ids in {len(pieces)} row groups",
            "Write it again, or leave the file out.",
        )
    return found
