"""What each rank's updates began from, noted from outside: a line of JSON before every update.

A run that was resumed is compared with one that was not, update by update: which of the things that
an update depends on was another one first? Digests stand for them, so that lines stay short.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

File = tuple[str, int, int, int]  # name, inode, time and size: another one after each writing


@dataclass(frozen=True, slots=True)
class Note:
    """What an update began from."""

    parameters: str
    optimizer: str  # its state for each parameter, and its rates
    data: str  # token ids that went into embeddings
    dropout: str  # torch's generator
    at: float  # seconds of the machine's one clock
    files: list[File]  # that lay in the folder


class StepNotes:
    """Context that notes every update of this process, and calls `after(updates made)`."""

    def __init__(self, path: Path, saves: Path, after: Callable[[int], None]) -> None:
        self.path, self.saves, self.after, self.updates = path, saves, after, 0
        self.data = hashlib.blake2b(digest_size=8)

    def __enter__(self) -> StepNotes:
        self.file = self.path.open("a")
        self.hooks = [
            register_module_forward_pre_hook(self.before_forward),
            register_optimizer_step_pre_hook(self.before_update),
            register_optimizer_step_post_hook(self.after_update),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for hook in self.hooks:
            hook.remove()
        self.file.close()

    def before_forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, nn.Embedding):
            self.data.update(content(inputs[0]))

    def before_update(self, optimizer: Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        rates = [torch.tensor(float(group["lr"])) for group in optimizer.param_groups]
        kept = [
            torch.as_tensor(value)
            for p in parameters
            for _, value in sorted(optimizer.state.get(p, {}).items())
        ]
        self.write(
            Note(
                parameters=digest(parameters),
                optimizer=digest([*rates, *kept]),
                data=self.data.hexdigest(),
                dropout=digest([torch.get_rng_state()]),
                at=time.monotonic(),
                files=files_in(self.saves),
            )
        )

    def after_update(self, *_: Any) -> None:
        self.updates += 1
        self.data = hashlib.blake2b(digest_size=8)
        self.after(self.updates)

    def write(self, note: Note) -> None:
        line = {name: getattr(note, name) for name in Note.__slots__}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def read_notes(path: Path) -> list[Note]:
    """The notes of one rank's start, without a last line that was cut off."""
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    lines = [json.loads(line) for line in whole]
    return [Note(**{**line, "files": [tuple(file) for file in line["files"]]}) for line in lines]


def digest(tensors: Iterable[Tensor]) -> str:
    """A few letters that differ if a bit of these differs."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(content(tensor))
    return found.hexdigest()


def content(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()


def files_in(folder: Path) -> list[File]:
    found = []
    for path in sorted(folder.rglob("*")):
        try:
            known = path.stat()
        except FileNotFoundError:
            continue  # renamed by another rank since it was listed
        if path.is_file():
            found.append((path.name, known.st_ino, known.st_mtime_ns, known.st_size))
    return found
