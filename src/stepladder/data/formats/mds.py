"""MosaicML's shards (MDS): a folder with an `index.json` and samples of named columns.

A shard is a count, the byte offset of each sample and of the end, then the samples: the sizes of
columns that vary, then all columns. The column of ids is an `ndarray` of integers, or `bytes` of
ids as many token datasets have it (int64 unless a dtype is named). The shards are memory-mapped and
a shard's ids are extracted when it is first used; MosaicML's package is needed only to unpack
compressed shards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.data.packing import DocumentStarts
from stepladder.errors import DataError, nearest

from .data_files import existing_path, listed_file, unreadable_data
from .memory_mapped import map_file
from .token_pieces import OpenPiece, TokenPiece
from .token_tables import COLUMNS

BYTES_KIND = "int64"
DTYPE_CODES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    32: "uint32",
    33: "int32",
    65: "int64",
}


def mds_pieces(index: Path, dtype: str | None, column: str | None) -> list[TokenPiece]:
    """Every shard that an index lists."""
    try:
        shards = json.loads(index.read_bytes())["shards"]
        return [_piece(index, shard, dtype, column) for shard in shards]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise unreadable_data(index, "token shards", error) from error


def _piece(
    index: Path, listed: dict[str, Any], dtype: str | None, wanted: str | None
) -> TokenPiece:
    if listed.get("format") != "mds" or listed.get("version") != 2:
        found = f"{listed.get('format')} of version {listed.get('version')}"
        raise DataError(
            "token shards", f"'{index}' lists shards of {found}", "Only MDS of version 2 is read."
        )
    names = listed["column_names"]
    column = _choose(index, names, wanted)
    shard = MdsShard(_raw(index.parent, listed), listed, names.index(column), dtype)
    _, lengths, kind = shard.places()
    length, name = int(lengths.sum()), f"'{shard.path}'"
    return TokenPiece(shard.path, name, length, kind, shard.open, documents=True, decoded=True)


@dataclass(frozen=True, slots=True)
class MdsShard:
    """One column of one MDS shard."""

    path: Path
    listed: dict[str, Any]  # what the index says of it
    column: int
    dtype: str | None

    def open(self) -> OpenPiece:
        places, lengths, kind = self.places()
        held = self._map()
        ends = places + lengths * kind.itemsize
        rows = [held[begin:end].view(kind) for begin, end in zip(places.tolist(), ends.tolist())]
        starts = np.cumsum(lengths) - lengths
        return OpenPiece(np.concatenate(rows), DocumentStarts(starts[lengths > 0]))

    def places(self) -> tuple[np.ndarray, np.ndarray, np.dtype]:
        """The byte at which each sample's ids begin, how many they are, and their type."""
        held, count, fixed = self._map(), self.listed["samples"], self.listed["column_sizes"]
        offsets = held[4 : 4 + 4 * (count + 1)].view("<u4").astype(np.int64)
        varying = [number for number, size in enumerate(fixed) if not size]
        sizes = np.array([[size or 0 for size in fixed]] * count, np.int64).reshape(count, -1)
        if len(varying) == 1:  # the rest of the sample, without touching its pages
            sizes[:, varying[0]] = np.diff(offsets) - 4 - sizes.sum(1)
        elif varying:
            heads = offsets[:-1, None] + np.arange(4 * len(varying))
            sizes[:, varying] = np.ascontiguousarray(held[heads]).view("<u4")
        begins = offsets[:-1] + 4 * len(varying) + sizes[:, : self.column].sum(1)
        heads, kind = self._heads(held, begins)
        return begins + heads, (sizes[:, self.column] - heads) // kind.itemsize, kind

    def _heads(self, held: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.dtype]:
        """The number of header bytes before each sample's ids, and the ids' dtype."""
        encoding, _, rest = self.listed["column_encodings"][self.column].partition(":")
        named, _, shape = rest.partition(":")
        nothing = np.zeros(len(begins), np.int64)
        if encoding == "bytes":
            return nothing, np.dtype(self.dtype or BYTES_KIND)
        if encoding != "ndarray":
            raise self._not_ids(encoding)
        typed = 0 if named else 1
        name = named or DTYPE_CODES.get(int(held[begins[0]]), "other")
        if name not in DTYPE_CODES.values():
            raise self._not_ids(f"ndarray of {name}")
        if typed and (held[begins] != held[begins[0]]).any():
            raise self._not_ids("arrays of several types")
        if shape:
            return nothing + typed, np.dtype(name)
        shapes = held[begins + typed].astype(np.int64)  # the number of sizes, and how wide each is
        return typed + 1 + (shapes >> 2) * (1 << (shapes & 3)), np.dtype(name)

    def _map(self) -> np.ndarray:
        try:
            return map_file(self.path, np.dtype(np.uint8))
        except (OSError, ValueError) as error:
            raise unreadable_data(self.path, "token shards", error) from error

    def _not_ids(self, found: str) -> DataError:
        name = self.listed["column_names"][self.column]
        return DataError(
            "column",
            f"'{name}' of '{self.path}' holds {found}, which are not token ids",
            "Name the column of token ids: column='...' (data.column in a recipe).",
        )


def _choose(index: Path, names: list[str], wanted: str | None) -> str:
    choices = (wanted,) if wanted else (*COLUMNS,)
    for name in choices:
        if name in names:
            return name
    raise DataError(
        "column",
        f"'{index}' lists no column {' or '.join(map(repr, choices))}; it has {', '.join(names)}",
        nearest(choices[0], names),
    )


def _raw(folder: Path, listed: dict[str, Any]) -> Path:
    """The uncompressed shard, after checking its size against the index."""
    raw, packed = listed["raw_data"], listed.get("zip_data")
    path = listed_file(folder, str(raw["basename"]), "token shards")
    zipped = packed and listed_file(folder, str(packed["basename"]), "token shards")
    if zipped and not path.exists() and zipped.exists():
        raise DataError(
            "token shards",
            f"'{zipped}' is compressed and is not unpacked here",
            "Unpack it beside itself, as the package `streaming` does when it is first read.",
        )
    path = existing_path(path, "token shards")
    if path.stat().st_size != raw["bytes"]:
        raise DataError(
            "token shards",
            f"'{path}' has {path.stat().st_size} bytes and its index says {raw['bytes']}",
            "It was cut short: fetch it again.",
        )
    return path
