"""Token shards: many files as one source of windows or packed rows, addressed by position.

    TokenShards("tokens/*.bin", 2048)               raw ids, or Megatron's where an .idx lies beside
    TokenShards("table/*.parquet", 2048)            a column of token lists
    TokenShards("saved/train", 2048, packed=True)   a folder that `datasets` saved, documents apart

The files are joined in the order of their names (a saved dataset's in its own order), so which
tokens a window contains depends on nothing but the files. Formats that must be decoded are read in
blocks of neighbouring windows; memory-mapped ones in any order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stepladder.errors import DataError

from .arrow_files import arrow_pieces
from .find_shards import MDS_INDEX, SHARD_SUFFIXES, find_shards
from .mds import mds_pieces
from .megatron import indexed_piece
from .memory_mapped import id_dtype, mapped_piece
from .token_files import TokenRows
from .token_pieces import MAX_OPEN, TokenPiece
from .token_tables import parquet_pieces

DEFAULT_DTYPE = "uint16"  # what most writers of raw ids use
CACHE_BYTES = 1 << 30  # of decoded pieces on each rank, unless one piece is larger
MAX_BLOCKS_TOGETHER = 16  # blocks shuffled among each other


class TokenShards(TokenRows):
    """Windows over the tokens of many files; `packed`, or `document_end`, keeps documents apart.

    Args:
        shards: a file, a folder, a pattern such as "tokens/*.bin", or several of them.
        dtype: of raw `.bin` files; the other formats record it.
        column: of tables; without it `input_ids` or `tokens`.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        length: int,
        *,
        dtype: str | None = None,
        column: str | None = None,
        packed: bool = False,
        document_end: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        if dtype is not None:
            id_dtype(dtype)
        files = find_shards(shards)
        pieces = [piece for file in files for piece in _pieces(file, files, dtype, column)]
        decoded = [piece for piece in pieces if piece.decoded]
        self.block, self.blocks_together, max_open = 0, 1, MAX_OPEN
        if decoded:
            self.block = max(1, max(piece.length for piece in decoded) // max(length, 1))
            largest = max(piece.decoded_bytes for piece in decoded)
            self.blocks_together = max(1, min(MAX_BLOCKS_TOGETHER, CACHE_BYTES // (2 * largest)))
            max_open = (
                2 * self.blocks_together + 1
            )  # a block lies in two pieces where it crosses a border
        super().__init__(
            pieces,
            length,
            packed=packed,
            document_end=document_end,
            vocabulary=vocabulary,
            max_open=max_open,
        )


def _pieces(
    path: Path, files: list[Path], dtype: str | None, column: str | None
) -> list[TokenPiece]:
    if path.name == MDS_INDEX:
        return mds_pieces(path, dtype, column)
    if path.suffix == ".parquet":
        return parquet_pieces(path, column)
    if path.suffix in (".arrow", ".feather"):
        return arrow_pieces(path, column)
    if path.suffix not in SHARD_SUFFIXES:
        raise DataError(
            "token shards",
            f"'{path}' does not end as token files do",
            f"Known are {', '.join(SHARD_SUFFIXES)}.",
        )
    if path.suffix == ".bin" and _indexed(path, files):
        return [indexed_piece(path, dtype)]
    return [mapped_piece(path, dtype or DEFAULT_DTYPE)]


def _indexed(path: Path, files: list[Path]) -> bool:
    """Whether the file has an `.idx` file; if only other files do, it is incomplete."""
    if path.with_suffix(".idx").exists():
        return True
    for other in files:
        if other.parent == path.parent and other.with_suffix(".idx").exists():
            raise DataError(
                "token index",
                f"'{path.with_suffix('.idx')}' is missing, and '{other.name}' beside it has one",
                "Restore the index, or read the raw files apart from the others.",
            )
    return False
