"""Which operations of a model run in which number format, as autocast decides on its device."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.plan import Precision
from stepladder.seam.dispatch import DispatchMode
from stepladder.seam.operators import Operators
from stepladder.seam.pytree import tree_leaves

from .fake_tensors import FakeForward, Inputs, running_parts
from .matmul_counter import CASTS

# Data movement, not arithmetic.
MOVES = Operators(("aten.clone", "aten.copy_", "aten.cat", "aten._unsafe_view"))


@dataclass(frozen=True, slots=True)
class PrecisionRow:
    """How often an operation of a module runs in a type."""

    name: str  # the dispatcher's; "cast" for every change of type
    module: str  # the innermost module, with a star for a block's number
    runs_in: str
    count: int


def precision_table(module: nn.Module, inputs: Inputs, precision: Precision) -> list[PrecisionRow]:
    """Each arithmetic operation of a forward pass with the type it runs in, most frequent first."""
    fake_forward = FakeForward(module, store=getattr(torch, precision.store))
    names = [name for name, _ in module.named_modules() if name]
    with running_parts(module, names) as inside, fake_forward.fake:
        recorder = DtypeRecorder(inside)
        work = getattr(torch, precision.work)
        mixed = torch.autocast(fake_forward.device.type, dtype=work, enabled=precision.mixed)
        with mixed, recorder:
            fake_forward(inputs)
    return [PrecisionRow(*key, count) for key, count in recorder.seen.most_common()]


class DtypeRecorder(DispatchMode):
    """Records the type of each operation below autocast, after its casts."""

    def __init__(self, inside: list[str]) -> None:
        super().__init__()
        self.inside = inside
        self.seen: Counter[tuple[str, str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        is_cast = packet in CASTS
        found = floats(out) if is_cast else floats((args, kwargs))
        arithmetic = func.namespace == "aten" and not func.is_view and packet not in MOVES
        if found and arithmetic:
            name = "cast" if is_cast else str(packet).removeprefix("aten.").strip("_")
            where = re.sub(r"\.\d+(?=\.|$)", ".*", self.inside[-1])
            widest = reduce(torch.promote_types, found)
            self.seen[name, where, str(widest).removeprefix("torch.")] += 1
        return out


def floats(values: Any) -> list[torch.dtype]:
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
