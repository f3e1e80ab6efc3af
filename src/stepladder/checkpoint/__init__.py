"""What is kept of a run: files that cannot run code, and cannot change unnoticed."""

from .boxes import Box, flat_boxes, whole_box
from .convert import (
    SHARD_BYTES,
    Huggingface,
    joint_source,
    stored_tensors,
    write_adapter,
    write_checkpoint,
    write_huggingface,
    write_state_dict,
)
from .digest import BLAKE3, SHA256, THREADS, chosen, hash_bytes, hash_file
from .folder import (
    KEPT,
    candidates,
    check_files,
    checkpoints,
    clear_partial,
    commit,
    folder_of,
    read_manifest,
    verify,
)
from .manifest import Manifest, Part, Stored, Tensors, merge
from .reading import Reader
from .tensors import CODES, Source, Written, open_tensors, write_files, write_tensors

__all__ = [
    "BLAKE3",
    "CODES",
    "KEPT",
    "SHA256",
    "SHARD_BYTES",
    "THREADS",
    "Box",
    "Huggingface",
    "Manifest",
    "Part",
    "Reader",
    "Source",
    "Stored",
    "Tensors",
    "Written",
    "candidates",
    "check_files",
    "checkpoints",
    "chosen",
    "clear_partial",
    "commit",
    "flat_boxes",
    "folder_of",
    "hash_bytes",
    "hash_file",
    "joint_source",
    "merge",
    "open_tensors",
    "read_manifest",
    "stored_tensors",
    "verify",
    "whole_box",
    "write_adapter",
    "write_checkpoint",
    "write_files",
    "write_huggingface",
    "write_state_dict",
    "write_tensors",
]
