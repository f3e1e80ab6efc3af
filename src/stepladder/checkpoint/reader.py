"""Reading any slice of any tensor of a checkpoint, assembled from the slices that ranks wrote."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from stepladder.errors import RecordError

from .hashing import THREADS
from .manifest import Manifest
from .safetensors_file import DTYPES, PAIRS, TensorFile, allocate_pages, open_tensors
from .tensor_slice import TensorSlice, whole_slice


class CheckpointReader:
    """An open checkpoint; its files are memory-mapped when first needed."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self.stack = ExitStack()
        self.files: dict[str, TensorFile] = {}

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.clear()
        self.stack.close()

    def read(self, name: str) -> Tensor:
        """A whole tensor, copied into memory."""
        entry = self.manifest.tensors[name]
        made = allocate_pages(entry.shape, DTYPES[entry.dtype])
        self.read_into(name, whole_slice(entry.shape), made)
        return made

    def read_all_into(self, wanted: Sequence[tuple[str, TensorSlice, Tensor]]) -> None:
        """Read many slices into their tensors, in parallel."""
        for name in self.manifest.files:
            self.file(name)  # opened here, because opening is not thread-safe
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(lambda one: self.read_into(*one), wanted):
                pass

    def read_into(self, name: str, wanted: TensorSlice, target: Tensor) -> None:
        """Read a slice into a tensor of its shape, whatever its dtype or device."""
        missing, dtype = wanted.count, DTYPES[self.manifest.tensors[name].dtype]
        for stored in self.manifest.tensors[name].stored:
            shared = stored.slice.intersection(wanted)
            if shared is None:
                continue
            source = from_pairs(self.file(stored.file).tensor(stored.key), dtype)
            if source.shape != torch.Size(stored.slice.size):
                raise self._incomplete(name)
            copy_values(
                shared.relative_to(stored.slice).view(source),
                shared.relative_to(wanted).view(target),
            )
            missing -= shared.count
        if missing:
            raise self._incomplete(name)

    def file(self, name: str) -> TensorFile:
        if name not in self.manifest.files:  # so its hash was never checked
            raise RecordError(
                "checkpoint", f"{self.path} holds no {name}", "Use an older checkpoint."
            )
        if name not in self.files:
            self.files[name] = self.stack.enter_context(open_tensors(self.path / name))
        return self.files[name]

    def _incomplete(self, name: str) -> RecordError:
        return RecordError(
            "checkpoint", f"{self.path} holds only part of '{name}'", "Use an older checkpoint."
        )


def from_pairs(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A complex tensor that was stored as pairs of real numbers; any other as it is."""
    paired = PAIRS.get(dtype) == tensor.dtype and tensor.shape[-1:] == (2,)
    return torch.view_as_complex(tensor) if paired else tensor


RAW = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # numpy has no bfloat16


@torch.no_grad()
def copy_values(source: Tensor, target: Tensor) -> None:
    """Copy into a tensor of the same shape, whatever its dtype or device."""
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride())):
        if stride == 0 and size > 1:  # expanded: all along it is one number
            source, target = source.narrow(dim, 0, 1), target.narrow(dim, 0, 1)
    if target.device.type != "cpu" or target.dtype != source.dtype:
        target.copy_(source)
        return
    # numpy, because torch's copy would start its own threads under each of the reader's threads.
    if target.is_complex():
        copy_values(torch.view_as_real(source), torch.view_as_real(target))
        increment_version(target)
        return
    raw = RAW[target.dtype.itemsize]
    numpy.copyto(target.detach().view(raw).numpy(), source.view(raw).numpy())
    increment_version(target)
