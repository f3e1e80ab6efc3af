"""A site: one tensor of a step under the name it has in the module that nobody cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepladder.checkpoint import as_bytes

# In order of computing. Forward passes of all micro-batches come before the gradients of any: none
# of them depends on a gradient of its own step.
KINDS = (
    *("input", "output", "loss", "output gradient", "gradient"),
    *("optimizer state", "parameter", "buffer"),
)
PHASES = {"input": 0, "output": 0, "loss": 1, "output gradient": 2, "gradient": 3}
LAST_PHASE = {"optimizer state": 4, "parameter": 5, "buffer": 6}


class Site(NamedTuple):
    """Equal to a plain tuple of the same words, which is how files hold it."""

    kind: str
    name: str  # of the module, the parameter or the buffer
    call: int = 0  # of the module within one forward pass
    part: str = ""  # of what a module takes or returns, or of an optimizer's state

    @property
    def phase(self) -> int:
        return (PHASES | LAST_PHASE)[self.kind]

    @property
    def module(self) -> str:
        """The module that it belongs to."""
        of_module = self.kind in ("input", "output", "output gradient")
        return self.name if of_module else self.name.rpartition(".")[0]

    def __str__(self) -> str:
        if self.kind == "loss":
            return "loss"
        if self.kind in ("gradient", "parameter", "buffer"):
            return f"{'gradient of ' if self.kind == 'gradient' else f'{self.kind} '}{self.name}"
        if self.kind == "optimizer state":
            return f"optimizer state {self.part} of {self.name}"
        what = {"input": "input of ", "output": "output of "}.get(
            self.kind, "gradient of output of "
        )
        part = f" ({self.part})" if self.part else ""
        again = f", call {self.call}" if self.call else ""
        return f"{what}{self.name or 'the module'}{part}{again}"


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of nested containers, with its path in them; other objects are passed over."""
    if isinstance(value, Tensor):
        yield path, value
        return
    if isinstance(value, Mapping):
        named = value.items()
    elif isinstance(value, list | tuple):
        named = enumerate(value)  # type: ignore[assignment]
    else:
        return
    for key, each in named:
        yield from tensors_in(each, f"{path}.{key}" if path else str(key))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same type and bits: 0 and -0 differ, a NaN equals itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(as_bytes(one.cpu()), as_bytes(other.cpu()))
