"""What is kept of a run: files that cannot run code, and cannot change unnoticed."""

from .convert import write_checkpoint
from .folder import candidates, checkpoints, read_manifest, verify
from .hashing import hash_bytes
from .manifest import Manifest
from .reader import Reader
from .safetensors_file import Source
from .tensor_boxes import Box, whole_box

__all__ = [
    "Box",
    "Manifest",
    "Reader",
    "Source",
    "candidates",
    "checkpoints",
    "hash_bytes",
    "read_manifest",
    "verify",
    "whole_box",
    "write_checkpoint",
]
