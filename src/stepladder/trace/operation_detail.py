"""One step operation by operation: the bytes moved, and the lines at which the host synchronises.

A dispatch mode sees every operation with its tensors, so bytes are counted exactly, and the Python
line that needs a number is on the stack. It slows the step down, so this step is never the one that
is timed.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from stepladder.seam.dispatch import DispatchMode, wraps_tensors
from stepladder.seam.pytree import tree_leaves

from .kernel_causes import VIEWS, op_cause

OURS = Path(__file__).parents[1]
# Frames between an operation and its caller: this mode, its relay, and torch.
BETWEEN = (str(OURS / "trace"), str(OURS / "seam"), str(Path(torch.__file__).parent), "<")
SYNCHRONISING_OPS = ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")
# Their output size depends on data.
DYNAMIC_SHAPE_OPS = ("aten::nonzero", "aten::masked_select", "aten::_unique2")


class OperationDetail(DispatchMode):
    """Counts the bytes of memory-bound operations and the lines where the host synchronises."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_bytes = 0
        self.waits: Counter[str] = Counter()  # by line

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(wraps_tensors(kind) for kind in types):
            return NotImplemented  # the operation is dispatched again on the inner tensors
        name = op.name().partition(".")[0]
        result = op(*args, **(kwargs or {}))
        read, made = tensors(args, kwargs), tensors(result)
        if (
            name in SYNCHRONISING_OPS
            or (name in DYNAMIC_SHAPE_OPS and on_device(read))
            or copies_to_host(read, made)
        ):
            if line := calling_line(sys._getframe(1)):
                self.waits[line] += 1
        elif name not in VIEWS and op_cause(name) is None:
            self.moved_bytes += sum(t.nbytes for t in read) + sum(t.nbytes for t in made)
        return result


def tensors(*trees: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(trees) if isinstance(leaf, Tensor)]


def on_device(read: list[Tensor]) -> bool:
    return any(tensor.device.type != "cpu" for tensor in read)


def copies_to_host(read: list[Tensor], made: list[Tensor]) -> bool:
    """Whether the operation copied from the device to the host, which synchronises."""
    return on_device(read) and any(t.device.type == "cpu" and t.numel() for t in made)


def calling_line(frame: FrameType | None) -> str:
    """File and line of the caller, skipping torch; empty if that is in stepladder itself."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(BETWEEN):
            if name.startswith(str(OURS)):
                return ""
            return f"{Path(name).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
