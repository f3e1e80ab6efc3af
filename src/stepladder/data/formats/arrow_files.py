"""Arrow files of token lists: feather files, and streams as `datasets` saves them.

An uncompressed file is memory-mapped, however large it is. A compressed one is decoded batch by
batch; a compressed stream can only be read from its beginning, so it is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.data.packing import DocumentStarts
from stepladder.errors import DataError

from .data_files import unreadable_data
from .token_pieces import JoinedPieces, OpenPiece, TokenPiece
from .token_tables import choose_column, flatten_ids, id_type, import_arrow, nonempty_pieces

FILE_MAGIC = b"ARROW1"


class RecordBatches:
    """One column of the record batches of a memory-mapped Arrow file or stream.

    `alone` reads no other column, which saves decoding them; it would copy a column that is not
    compressed.
    """

    def __init__(self, path: Path, column: str | None, *, alone: bool = False) -> None:
        self.path = path
        pa = import_arrow("pyarrow")
        try:
            self.source = pa.memory_map(str(path))
            whole = self.source.read_buffer()
            self.begin, self.size = whole.address, whole.size
            self.indexed = bytes(whole[: len(FILE_MAGIC)]) == FILE_MAGIC
            schema = self._reader(None).schema
            self.column = choose_column(path, schema, column)
            self.kind = id_type(path, schema, self.column)
            reader = self._reader([schema.get_field_index(self.column)] if alone else None)
            # A stream cannot be seeked, so all its batches are kept open.
            self._batches: Any = reader if self.indexed else list(reader)
        except (OSError, ValueError) as error:
            raise unreadable_data(path, "token table", error) from error

    def __len__(self) -> int:
        return self._batches.num_record_batches if self.indexed else len(self._batches)

    def opened(self, number: int) -> OpenPiece:
        """The ids and documents of one batch."""
        try:
            batch = self._batches.get_batch(number) if self.indexed else self._batches[number]
        except (OSError, ValueError) as error:
            raise unreadable_data(self.path, "token table", error) from error
        tokens, starts = flatten_ids(batch.column(self.column), self.path, self.column)
        return OpenPiece(tokens, DocumentStarts(starts))

    def is_mapped(self, held: OpenPiece) -> bool:
        """Whether these ids are the mapped file's bytes, not a decoded copy."""
        if not len(held.tokens):
            return True
        address = np.asarray(held.tokens).ctypes.data
        return self.begin <= address < self.begin + self.size

    def _reader(self, fields: list[int] | None) -> Any:
        ipc = import_arrow("pyarrow.ipc")
        options = ipc.IpcReadOptions(included_fields=fields)
        self.source.seek(0)
        opening = ipc.open_file if self.indexed else ipc.open_stream
        return opening(self.source, options=options)


def arrow_pieces(path: Path, column: str | None) -> list[TokenPiece]:
    """The file as one mapped piece, or each of its compressed batches as one."""
    batches = RecordBatches(path, column)
    if all(batches.is_mapped(batches.opened(number)) for number in range(len(batches))):
        length = sum(len(batches.opened(number).tokens) for number in range(len(batches)))
        opening, size = partial(_open_mapped, path, batches.column), path.stat().st_size
        whole = TokenPiece(
            path, f"'{path}'", length, batches.kind, opening, documents=True, size=size
        )
        return nonempty_pieces([whole], path, batches.column)
    if not batches.indexed:
        raise DataError(
            "token table",
            f"'{path}' is a compressed stream, which can only be read from its beginning",
            "Write it as Parquet, or as an Arrow file rather than a stream.",
        )
    return nonempty_pieces(_compressed(path, batches.column), path, batches.column)


def _compressed(path: Path, column: str) -> list[TokenPiece]:
    batches = RecordBatches(path, column, alone=True)
    return [
        TokenPiece(
            path,
            f"batch {number} of '{path}'",
            len(batches.opened(number).tokens),
            batches.kind,
            partial(_open_batch, path, column, number),
            documents=True,
            decoded=True,
        )
        for number in range(len(batches))
    ]


def _open_batch(path: Path, column: str, number: int) -> OpenPiece:
    return RecordBatches(path, column, alone=True).opened(number)


def _open_mapped(path: Path, column: str) -> OpenPiece:
    """All record batches of a file, joined without copying."""
    batches = RecordBatches(path, column)
    held = [batches.opened(number) for number in range(len(batches))]
    inside = JoinedPieces(
        [
            TokenPiece(path, f"'{path}'", len(one.tokens), batches.kind, partial(_same, one), True)
            for one in held
            if len(one.tokens)
        ],
        max_open=max(len(held), 1),
    )
    return OpenPiece(inside, inside)


def _same(held: OpenPiece) -> OpenPiece:
    return held
