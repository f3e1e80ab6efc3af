"""One file of tensors in the safetensors format: written in one pass, read in parts.

The format is a length, a JSON header and the bytes. Writing it here rather than through the
library saves a second copy of every tensor in memory and a second reading for the hash; files are
what the library reads, and tests hold them to it.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepladder.errors import RecordError

from .hashing import SHA256, THREADS, chosen
from .parallel_writer import Stretches

CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
TYPES = {code: dtype for dtype, code in CODES.items()}
ALIGNMENT = 8
LARGEST_HEADER = 100 * 2**20  # the library's own limit


@dataclass(frozen=True, slots=True)
class Written:
    """What a file was when it was written."""

    size: int
    digest: str
    hash: str = SHA256  # that gave the digest; what was written before there were two says none


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that is made when its turn comes, and let go of when it is written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Source:
        return cls(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Written:
    """Write a file of host tensors in one pass and force it to the disk."""
    sources = [Source.of(name, tensor) for name, tensor in tensors.items()]
    return write_files({path: sources}, metadata)[path]


def write_files(
    files: Mapping[Path, Sequence[Source]], metadata: Mapping[str, str] | None = None
) -> dict[Path, Written]:
    """Write files of host tensors and force them to the disk.

    A file goes to the disk while the next is hashed and written.
    """
    name = chosen()
    with ThreadPoolExecutor(THREADS) as pool, ThreadPoolExecutor(1) as forcing:
        written, begun = {}, []
        for path, sources in files.items():
            with (
                path.open("wb", buffering=0) as file,
                Stretches(pool, file.fileno(), name) as stretches,
            ):
                for data in parts(sources, metadata):
                    stretches.add(data)
                digest = stretches.result()
                written[path] = Written(stretches.size, digest, name)
                # A handle of its own: this one closes now, that one when the bytes are down.
                begun.append(forcing.submit(force, os.dup(file.fileno())))
        for forced in begun:
            forced.result()
        return written


def parts(sources: Sequence[Source], metadata: Mapping[str, str] | None) -> Iterator[memoryview]:
    """A file's bytes in order."""
    # Wide types first, so that every tensor starts at a multiple of its own width.
    ordered = sorted(sources, key=lambda source: -source.dtype.itemsize)
    yield memoryview(make_header(ordered, metadata))
    for source in ordered:
        yield raw_bytes(source.make())


def force(handle: int) -> None:
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def raw_bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().contiguous().reshape(-1)
    raw: Any = flat.view(torch.uint8).numpy()
    return memoryview(raw) if flat.numel() else memoryview(b"")


def make_header(sources: Sequence[Source], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for source in sources:
        entries[source.name] = {
            "dtype": CODES[source.dtype],
            "shape": list(source.shape),
            "data_offsets": [at, at + source.num_bytes],
        }
        at += source.num_bytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def on_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An unfilled tensor on pages of its own: given back when it is let go of, which a heap of
    many such tensors does not promise."""
    size = prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(tuple(shape), dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    flat = torch.frombuffer(pages, dtype=torch.uint8)
    return flat.view(dtype).reshape(tuple(shape))


class TensorFile:
    """A file of tensors, mapped into memory: only what is asked for is read."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.body, self.entries = read_header(path, data)

    def names(self) -> list[str]:
        return list(self.entries)

    def tensor(self, name: str) -> Tensor:
        """A tensor that lives in the file; copy what shall outlive it."""
        if name not in self.entries:
            raise broken(self.path, f"holds no '{name}'")
        entry = self.entries[name]
        first, last = entry["data_offsets"]
        dtype, shape = TYPES[entry["dtype"]], entry["shape"]
        if first == last:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self.body[first:last], dtype=torch.uint8)
        return flat.view(dtype).reshape(shape)


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    try:
        with path.open("rb") as file:
            # A private mapping is writable, as torch wants it, and never reaches the file.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as refused:
        raise broken(path, f"cannot be read ({refused})") from refused
    yield TensorFile(path, data)  # the mapping lives as long as a tensor that looks into it


def read_header(path: Path, data: mmap.mmap) -> tuple[memoryview, dict[str, Any]]:
    """The bytes behind the header and what it says of them, or why it cannot be true."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(LARGEST_HEADER, len(data) - 8):
        raise broken(path, "is not a file of tensors")
    try:
        entries = json.loads(data[8 : 8 + length])
        entries.pop("__metadata__", None)
        body = memoryview(data)[8 + length :]
        for entry in entries.values():
            first, last = entry["data_offsets"]
            size = torch.Size(entry["shape"]).numel() * TYPES[entry["dtype"]].itemsize
            if not 0 <= first <= last <= len(body) or last - first != size:
                raise ValueError("a tensor reaches beyond the file")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as wrong:
        raise broken(path, f"is not a file of tensors ({wrong})") from wrong
    return body, entries


def broken(path: Path, problem: str) -> RecordError:
    return RecordError("checkpoint", f"{path} {problem}", "Use an older checkpoint.")
