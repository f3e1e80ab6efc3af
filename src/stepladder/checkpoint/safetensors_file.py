"""Safetensors files: written and hashed in one pass, read tensor by tensor through a mapping.

The format is a length, a JSON header and the bytes. Writing it here rather than with the
safetensors library saves a second copy of every tensor in memory and a second read for the hash;
tests check that the library reads these files.
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

from .hashing import SHA256, THREADS, default_hash
from .parallel_writer import ChunkWriter
from .tensor_bytes import as_bytes

DTYPE_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex64: "C64",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    # Of our manifests alone: files hold them as pairs, because the format has no such types.
    torch.complex128: "C128", torch.complex32: "C32",
}  # fmt: skip
DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}
PAIRS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
METADATA = "__metadata__"  # no tensor of a file can have this name
ALIGNMENT = 8
LARGEST_HEADER = 100 * 2**20  # the library's own limit


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A file's size and hash when it was written."""

    size: int
    digest: str
    hash: str = SHA256  # the algorithm; format 2 has no such entry and always used SHA-256


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor that is made just before it is written, and freed afterwards."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorSource:
        return cls(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)


def write_files(
    files: Mapping[Path, Sequence[TensorSource]], metadata: Mapping[str, str] | None = None
) -> dict[Path, FileDigest]:
    """Write files of CPU tensors and flush them to disk, each while the next is written."""
    name = default_hash()
    with ThreadPoolExecutor(THREADS) as pool, ThreadPoolExecutor(1) as syncing:
        written, syncs = {}, []
        for path, sources in files.items():
            with (
                path.open("wb", buffering=0) as file,
                ChunkWriter(pool, file.fileno(), name) as writer,
            ):
                for data in file_chunks(sources, metadata):
                    writer.add(data)
                digest = writer.result()
                written[path] = FileDigest(writer.size, digest, name)
                # A duplicate handle: this one closes now, the duplicate after the fsync.
                syncs.append(syncing.submit(fsync_and_close, os.dup(file.fileno())))
        for sync in syncs:
            sync.result()
        return written


def file_chunks(
    sources: Sequence[TensorSource], metadata: Mapping[str, str] | None
) -> Iterator[memoryview]:
    """Yield a file's bytes in order: the header, then each tensor."""
    # Wide types first, so that every tensor starts at a multiple of its own width.
    ordered = sorted(sources, key=lambda source: -source.dtype.itemsize)
    yield memoryview(make_header(ordered, metadata))
    for source in ordered:
        yield raw_bytes(source.make())


def fsync_and_close(handle: int) -> None:
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def raw_bytes(tensor: Tensor) -> memoryview:
    raw: Any = as_bytes(tensor).numpy()
    return memoryview(raw) if raw.size else memoryview(b"")


def make_header(sources: Sequence[TensorSource], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    at = 0
    for source in sources:
        if source.name == METADATA:
            problem = f"the format reserves the name '{METADATA}', which a tensor has"
            raise RecordError("checkpoint", problem, "Rename that parameter or buffer.")
        pair = PAIRS.get(source.dtype)
        entries[source.name] = {
            "dtype": DTYPE_CODES[pair or source.dtype],
            "shape": [*source.shape, 2] if pair else list(source.shape),
            "data_offsets": [at, at + source.num_bytes],
        }
        at += source.num_bytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def allocate_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An empty tensor on its own memory pages, which go back to the system when it is freed.

    The heap does not promise that for many large tensors.
    """
    size = prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(tuple(shape), dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    flat = torch.frombuffer(pages, dtype=torch.uint8)
    return flat.view(dtype).reshape(tuple(shape))


class TensorFile:
    """A memory-mapped safetensors file: only the tensors asked for are read."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.body, self.entries = read_header(path, data)

    def names(self) -> list[str]:
        return list(self.entries)

    def tensor(self, name: str) -> Tensor:
        """A tensor that is a view of the mapped file."""
        if name not in self.entries:
            raise unreadable_file(self.path, f"holds no '{name}'")
        entry = self.entries[name]
        first, last = entry["data_offsets"]
        dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
        if first == last:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self.body[first:last], dtype=torch.uint8)
        return flat.view(dtype).reshape(shape)


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Map a safetensors file into memory and check its header."""
    try:
        with path.open("rb") as file:
            # A private mapping is writable, which torch requires, and never changes the file.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as refused:
        raise unreadable_file(path, f"cannot be read ({refused})") from refused
    yield TensorFile(path, data)  # the mapping lives as long as any tensor that views it


def read_header(path: Path, data: mmap.mmap) -> tuple[memoryview, dict[str, Any]]:
    """The bytes after the header, and the header's entries; raises if they are inconsistent."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(LARGEST_HEADER, len(data) - 8):
        raise unreadable_file(path, "is not a file of tensors")
    try:
        entries = json.loads(data[8 : 8 + length])
        entries.pop(METADATA, None)
        body = memoryview(data)[8 + length :]
        for entry in entries.values():
            first, last = entry["data_offsets"]
            size = torch.Size(entry["shape"]).numel() * DTYPES[entry["dtype"]].itemsize
            if not 0 <= first <= last <= len(body) or last - first != size:
                raise ValueError("a tensor reaches beyond the file")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as wrong:
        raise unreadable_file(path, f"is not a file of tensors ({wrong})") from wrong
    return body, entries


def unreadable_file(path: Path, problem: str) -> RecordError:
    return RecordError("checkpoint", f"{path} {problem}", "Use an older checkpoint.")
