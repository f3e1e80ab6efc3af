"""Any box of any tensor of a checkpoint, put together from whatever boxes were kept."""

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
from .safetensors_file import TYPES, TensorFile, on_pages, open_tensors
from .tensor_boxes import Box, whole_box


class Reader:
    """An open checkpoint; files are mapped when first needed."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self.stack = ExitStack()
        self.files: dict[str, TensorFile] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.clear()
        self.stack.close()

    def whole(self, name: str) -> Tensor:
        """A tensor of its own."""
        entry = self.manifest.tensors[name]
        made = on_pages(entry.shape, TYPES[entry.dtype])
        self.fill(name, whole_box(entry.shape), made)
        return made

    def fill_all(self, wanted: Sequence[tuple[str, Box, Tensor]]) -> None:
        """Put many boxes' numbers into their tensors, several at a time."""
        for name in self.manifest.files:
            self.file(name)  # before threads ask for it
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(lambda one: self.fill(*one), wanted):
                pass

    def fill(self, name: str, box: Box, target: Tensor) -> None:
        """Put the box's numbers into a tensor of its shape, whatever its type or device."""
        missing = box.count
        for stored in self.manifest.tensors[name].stored:
            common = stored.box.common(box)
            if common is None:
                continue
            source = self.file(stored.file).tensor(stored.key)
            if source.shape != torch.Size(stored.box.size):
                raise self._incomplete(name)
            put(common.inside(stored.box).view(source), common.inside(box).view(target))
            missing -= common.count
        if missing:
            raise self._incomplete(name)

    def file(self, name: str) -> TensorFile:
        if name not in self.manifest.files:  # so nobody proved what it holds
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


RAW = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # numpy knows no bfloat16


@torch.no_grad()
def put(source: Tensor, target: Tensor) -> None:
    """Copy numbers into a tensor of the same shape, whatever its type or device."""
    if target.device.type != "cpu" or target.dtype != source.dtype:
        target.copy_(source)
        return
    # Not by torch, which would start threads for this below each of the threads that fill.
    raw = RAW[target.dtype.itemsize]
    numpy.copyto(target.detach().view(raw).numpy(), source.view(raw).numpy())
    increment_version(target)
