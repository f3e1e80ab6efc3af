"""What user code keeps outside of any state_dict: counters, histories, generators, caches.

A module's attributes and those of its class, its buffers that are not persistent, and what a loss
holds. A step may change
them, and then a run that goes on without them computes something else. Those that have changed
since the run was begun are saved beside a rank's random generators and given back to the same
ranks; on other ranks, all go on with those of the first. What cannot be stored is reported, once.

Globals, and what code holds elsewhere, are not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checkpoint.safetensors_file import DTYPE_CODES, PAIRS
from stepladder.rungs import Climbed
from stepladder.seam.modules import buffers_of, module_attributes, persistent_buffers
from stepladder.train.tuning.loss_state import has_contents

from .attribute_values import capture, class_values, fill_tensor, give_back, mark, own_classes
from .plain_values import decode, encode
from .rank_state import has_extra_state

RAW, DATA = "held-tensor/", "held/"  # before the name, in a rank's own file
OURS = "stepladder."  # whose modules are rebuilt, and whose state is saved otherwise
WAY_OUT = "Keep it in a buffer or in get_extra_state, or derive it from what is."


class Cells(MutableMapping[str, Any]):
    """The variables of an enclosing function that a function refers to, by name."""

    def __init__(self, function: FunctionType) -> None:
        names = function.__code__.co_freevars
        self.cells: dict[str, CellType] = dict(zip(names, function.__closure__ or ()))

    def __getitem__(self, name: str) -> Any:
        return self.cells[name].cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self.cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self.cells[name].cell_contents

    def __iter__(self) -> Iterator[str]:
        return (name for name, cell in self.cells.items() if has_contents(cell))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ClassAttributes(MutableMapping[str, Any]):
    """What a class holds, by name."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __getitem__(self, name: str) -> Any:
        return class_values(self.kind)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.kind, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self.kind, name)

    def __iter__(self) -> Iterator[str]:
        return iter(class_values(self.kind))

    def __len__(self) -> int:
        return len(class_values(self.kind))


Slot = tuple[MutableMapping[str, Any], str]  # what holds a value, and under which name


@dataclass(slots=True)
class AttributeState:
    """What is held outside of the state, and how it was when the run was begun."""

    first: dict[str, Any] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)

    def begin(self, climbed: Climbed) -> AttributeState:
        self.first = {name: marked(held[key]) for name, (held, key) in slots(climbed)}
        return self

    def changed(self, climbed: Climbed) -> Iterator[tuple[str, Any]]:
        """By name, what is not as it was in the beginning."""
        for name, (held, key) in slots(climbed):
            if name not in self.first or self.first[name] != marked(held[key]):
                yield name, held[key]

    def read(self, climbed: Climbed, device: torch.device, events: list[str]) -> dict[str, Tensor]:
        """What a save keeps of it; `events` gets a sentence for each that cannot be kept."""
        found: dict[str, Tensor] = {}
        for name, value in self.changed(climbed):
            try:
                if is_raw(value, device):
                    found[RAW + name] = value.detach().to("cpu", copy=True).contiguous()
                else:
                    found[DATA + name] = encode(capture(value))
            except (TypeError, ValueError, RecursionError, RuntimeError) as unable:
                if name not in self.reported:
                    self.reported.add(name)
                    events.append(
                        f"the attribute '{name}' changes in training and no checkpoint can hold it "
                        f"({unable}): a run that goes on begins with a new one. {WAY_OUT}"
                    )
        return found

    def set(
        self, climbed: Climbed, stored: dict[str, Tensor], device: torch.device
    ) -> Iterable[str]:
        """Give back what a checkpoint keeps; sentences about what stays otherwise."""
        kept = {name.partition("/")[2]: (name, value) for name, value in stored.items()}
        here = dict(slots(climbed))
        for name, _ in list(self.changed(climbed)):
            if name not in kept and name not in self.reported:
                yield f"no attribute '{name}' is in the checkpoint, and it has changed: it stays so"
        for name, (path, value) in kept.items():
            slot = here.get(name) or missing_slot(climbed, name)
            if slot is None:
                yield f"the checkpoint holds an attribute '{name}' that nothing here has: left out"
                continue
            held, key = slot
            try:
                if path.startswith(RAW):
                    held[key] = fill_tensor(held.get(key), value, device)
                else:
                    held[key] = give_back(held.get(key), decode(value), device)
            except (TypeError, ValueError, KeyError, AttributeError) as unable:
                yield f"the attribute '{name}' cannot be given back ({unable}): it stays as it is"


def marked(value: Any) -> Any:
    """Its mark; None of an object of a user's class that cannot be looked at."""
    try:
        return mark(value)
    except Exception:  # such as in its own __repr__ or __reduce__
        return None


def slots(climbed: Climbed) -> Iterator[tuple[str, Slot]]:
    """Everything that is held outside of the state, by name."""
    loss = climbed.forward_backward.loss.function
    parts = list(climbed.state.named_modules())
    if isinstance(loss, nn.Module) and all(part is not loss for _, part in parts):
        parts += loss.named_modules(prefix="loss")
    for prefix, part in parts:
        dot = f"{prefix}." if prefix else ""
        if type(part).__module__.startswith(OURS) or has_extra_state(part):
            continue
        for name in module_attributes(part):
            if isinstance(name, str):
                yield dot + name, (vars(part), name)
        buffers = buffers_of(part)
        lasting = dict(persistent_buffers(part))
        for name, buffer in buffers.items():
            if buffer is not None and name not in lasting:
                yield dot + name, (buffers, name)
    for kind in own_classes(type(part) for _, part in parts):
        shared = ClassAttributes(kind)
        yield from ((f"class {kind.__qualname__}.{name}", (shared, name)) for name in shared)
    if not isinstance(loss, nn.Module):
        yield from loss_slots(loss)


def loss_slots(loss: Any) -> Iterator[tuple[str, Slot]]:
    """What a loss that is no module holds: an object's attributes, a function's closure."""
    if isinstance(loss, MethodType):
        loss = loss.__self__
    if isinstance(loss, FunctionType):
        held: MutableMapping[str, Any] = Cells(loss)
    else:
        held = getattr(loss, "__dict__", {})
    if not is_code_of_others(loss):
        yield from ((f"loss.{name}", (held, name)) for name in list(held))


def is_code_of_others(loss: Any) -> bool:
    where = loss.__module__ if isinstance(loss, FunctionType) else type(loss).__module__
    return (where or "torch").partition(".")[0] in ("torch", "stepladder", "functools")


def is_raw(value: Any, device: torch.device) -> bool:
    """Whether a tensor is stored as it is, and not as text."""
    plain = isinstance(value, Tensor) and value.layout is torch.strided
    return plain and value.device.type == device.type and value.dtype in DTYPE_CODES.keys() - PAIRS


def missing_slot(climbed: Climbed, name: str) -> Slot | None:
    """Where an attribute belongs that a step makes, and no step was taken yet."""
    path, _, key = name.rpartition(".")
    part = dict(climbed.state.named_modules()).get(path)
    return None if part is None else (part.__dict__, key)
