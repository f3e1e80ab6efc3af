"""Arrow files of token lists: feather files, and streams as `datasets` saves them.

A file that is not compressed is used where it lies, however large it is. A compressed one is
decoded batch by batch; a compressed stream can only be read from its beginning, so it is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.data.packing import Listed
from stepladder.errors import DataError

from .data_files import unreadable
from .token_pieces import Opened, Piece, Stretches
from .token_tables import arrow, choose_column, id_type, values, with_ids

FILE_MAGIC = b"ARROW1"


class Batches:
    """One column of the record batches of an Arrow file or stream, mapped.

    `alone` reads no other column, which spares decoding them; torn out of its batch, a column that
    is not compressed would be copied.
    """

    def __init__(self, path: Path, column: str | None, *, alone: bool = False) -> None:
        self.path = path
        pa = arrow("pyarrow")
        try:
            self.source = pa.memory_map(str(path))
            whole = self.source.read_buffer()
            self.begin, self.size = whole.address, whole.size
            self.indexed = bytes(whole[: len(FILE_MAGIC)]) == FILE_MAGIC
            schema = self._reader(None).schema
            self.column = choose_column(path, schema, column)
            self.kind = id_type(path, schema, self.column)
            reader = self._reader([schema.get_field_index(self.column)] if alone else None)
            # A stream has no places to go to, so all its batches are held.
            self._held: Any = reader if self.indexed else list(reader)
        except (OSError, ValueError) as error:
            raise unreadable(path, "token table", error) from error

    def __len__(self) -> int:
        return self._held.num_record_batches if self.indexed else len(self._held)

    def opened(self, number: int) -> Opened:
        """The ids and documents of one batch."""
        try:
            batch = self._held.get_batch(number) if self.indexed else self._held[number]
        except (OSError, ValueError) as error:
            raise unreadable(self.path, "token table", error) from error
        tokens, starts = values(batch.column(self.column), self.path, self.column)
        return Opened(tokens, Listed(starts))

    def lies_here(self, held: Opened) -> bool:
        """Whether these ids are the file's own bytes, not a decoded copy."""
        if not len(held.tokens):
            return True
        address = np.asarray(held.tokens).ctypes.data
        return self.begin <= address < self.begin + self.size

    def _reader(self, fields: list[int] | None) -> Any:
        ipc = arrow("pyarrow.ipc")
        options = ipc.IpcReadOptions(included_fields=fields)
        self.source.seek(0)
        opening = ipc.open_file if self.indexed else ipc.open_stream
        return opening(self.source, options=options)


def arrow_pieces(path: Path, column: str | None) -> list[Piece]:
    """The file as one mapped piece, or each of its compressed batches as one."""
    batches = Batches(path, column)
    if all(batches.lies_here(batches.opened(number)) for number in range(len(batches))):
        length = sum(len(batches.opened(number).tokens) for number in range(len(batches)))
        opening, size = partial(_open_mapped, path, batches.column), path.stat().st_size
        whole = Piece(path, f"'{path}'", length, batches.kind, opening, documents=True, size=size)
        return with_ids([whole], path, batches.column)
    if not batches.indexed:
        raise DataError(
            "token table",
            f"'{path}' is a compressed stream, which can only be read from its beginning",
            "Write it as Parquet, or as an Arrow file rather than a stream.",
        )
    return with_ids(_compressed(path, batches.column), path, batches.column)


def _compressed(path: Path, column: str) -> list[Piece]:
    batches = Batches(path, column, alone=True)
    return [
        Piece(
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


def _open_batch(path: Path, column: str, number: int) -> Opened:
    return Batches(path, column, alone=True).opened(number)


def _open_mapped(path: Path, column: str) -> Opened:
    """All batches of a file, laid end to end without copying."""
    batches = Batches(path, column)
    held = [batches.opened(number) for number in range(len(batches))]
    inside = Stretches(
        [
            Piece(path, f"'{path}'", len(one.tokens), batches.kind, partial(_same, one), True)
            for one in held
            if len(one.tokens)
        ],
        kept=max(len(held), 1),
    )
    return Opened(inside, inside)


def _same(held: Opened) -> Opened:
    return held
