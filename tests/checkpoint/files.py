"""Single checkpoint files, for tests: the package itself writes and hashes several at once."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from stepladder.checkpoint import TensorSource
from stepladder.checkpoint.hashing import hash_files
from stepladder.checkpoint.safetensors_file import FileDigest, write_files


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileDigest:
    sources = [TensorSource.of(name, tensor) for name, tensor in tensors.items()]
    return write_files({path: sources})[path]


def hash_file(path: Path, name: str) -> str:
    return next(hash_files([(path, name)]))
