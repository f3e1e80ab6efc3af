"""The checkpoint format: safetensors files that cannot run code, a manifest, hashes, the commit."""

from .convert import write_checkpoint
from .find import find_checkpoints, list_checkpoints
from .hashing import hash_bytes
from .integrity import read_manifest, verify_checkpoint
from .manifest import Manifest
from .reader import CheckpointReader
from .safetensors_file import TensorSource
from .tensor_bytes import as_bytes
from .tensor_slice import TensorSlice, whole_slice

__all__ = [
    "CheckpointReader",
    "Manifest",
    "TensorSlice",
    "TensorSource",
    "as_bytes",
    "find_checkpoints",
    "hash_bytes",
    "list_checkpoints",
    "read_manifest",
    "verify_checkpoint",
    "whole_slice",
    "write_checkpoint",
]
