"""Values that user code holds in attributes: whether one has changed, as data, and given back.

Numbers, texts, tensors, arrays, random generators, and lists, dictionaries and objects of these.
Tensors, containers, generators and objects are given back in place, since other code may refer to
them. What is code, and what belongs to torch, is none of it.
"""

from __future__ import annotations

import json
import random
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.seam.storages import version_of
from stepladder.world.generator_state import (
    GENERATORS,
    generator_state,
    set_generator_state,
)

from .plain_values import from_data, to_data

CODE = (type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, nn.Module, nn.Parameter)
MAPPINGS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict, "default": defaultdict}
SEQUENCES: dict[str, Any] = {"list": list, "deque": deque}
MOST = 20_000  # values of one attribute that are looked at
FOREIGN = ("torch", "stepladder", "builtins")  # whose objects are no state of a user's code
KEEP: dict[str, Any] = {"kept": None}  # stands for what is left as it is


class TensorMark:
    """A tensor at one moment, without a reference that would keep it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.version = -1 if tensor.is_inference() else version_of(tensor)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorMark) or self.version != other.version:
            return False
        mine = self.tensor()
        return mine is not None and mine is other.tensor()

    __hash__ = None  # type: ignore[assignment]


class Changing:
    """What may have moved without a trace, such as a generator function that was asked for more."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


@dataclass(slots=True)
class Visit:
    """A walk through one value: what was met, each once, and how much."""

    seen: set[int] = field(default_factory=set)
    count: int = 0

    def is_new(self, holder: Any, size: int) -> bool:
        if id(holder) in self.seen:
            return False
        self.seen.add(id(holder))
        self.count += size
        return True


def mark(value: Any, visit: Visit | None = None) -> Any:
    """Something equal to the value's mark of an earlier moment if the value has not changed."""
    visit = visit or Visit()
    if is_code(value):
        return None
    if isinstance(value, Tensor):
        return TensorMark(value)
    if isinstance(value, GENERATORS):
        return json.dumps(to_data(generator_state(value)))
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes() if value.nbytes <= 2**20 else id(value)
    if moves(value):
        return place_of(value)
    parts = parts_of(value)
    if parts is None:
        return repr(value) if is_scalar(value) else None
    if not visit.is_new(value, len(parts)) or visit.count > MOST:
        return len(parts)
    return type(value), [(key, mark(part, visit)) for key, part in parts]


def place_of(iterator: Any) -> Any:
    """Where an iterator is, where it tells; an open file does not, and is none of the state."""
    if isinstance(iterator, GeneratorType):
        return Changing()
    try:
        place = iterator.__reduce__()[2:]
    except (TypeError, AttributeError, ValueError):
        return None
    return (id(iterator), *place) if place and isinstance(place[0], int) else Changing()


def capture(value: Any, visit: Visit | None = None) -> Any:
    """The value as data; raises a `TypeError` that names what cannot be stored."""
    visit = visit or Visit()
    if is_code(value) or id(value) in visit.seen:
        return KEEP
    if isinstance(value, GENERATORS):
        return {"generator": [type(value).__name__, to_data(generator_state(value))]}
    if isinstance(value, Tensor):
        return {"tensor": [to_data(value.detach()), value.device.type]}
    if moves(value):
        raise TypeError(f"a {type(value).__name__}")
    parts = None if isinstance(value, tuple | set | frozenset) else parts_of(value)
    if parts is None:
        return {"plain": to_data(value)}
    visit.is_new(value, len(parts))
    if visit.count > MOST:
        raise TypeError(f"more than {MOST:,} values")
    kept = [[to_data(key), capture(part, visit)] for key, part in parts]
    for form, kinds in (("mapping", MAPPINGS), ("sequence", SEQUENCES)):
        for name, kind in kinds.items():
            if type(value) is kind:
                return {form: [name, kept]}
    return {"object": [type(value).__qualname__, kept]}


@torch.no_grad()
def give_back(current: Any, data: Any, device: torch.device) -> Any:
    """What the data stands for: the current value filled with it, else a new one."""
    ((form, held),) = data.items()
    if form == "kept":
        return current
    if form == "plain":
        return from_data(held)
    if form == "tensor":
        return fill_tensor(current, from_data(held[0]), device if held[1] != "cpu" else None)
    if form == "generator":
        return set_generator(current, held[0], from_data(held[1]), device)
    name, kept = held
    pairs = [(from_data(key), part) for key, part in kept]
    if form == "object":
        if type(current).__qualname__ != name:
            raise TypeError(f"it was a {name} and is a {type(current).__qualname__}")
        own = vars(current)
        own.update({key: give_back(own.get(key), part, device) for key, part in pairs})
        return current
    if type(current) is not (kind := {**MAPPINGS, **SEQUENCES}[name]):
        current = kind()
    before = current if form == "mapping" else dict(enumerate(current))
    new = {key: give_back(before.get(key), part, device) for key, part in pairs}
    current.clear()
    current.update(new) if form == "mapping" else current.extend(new.values())
    return current


@torch.no_grad()
def fill_tensor(current: Any, value: Tensor, device: torch.device | None) -> Tensor:
    """The current tensor with these numbers where it can hold them; else a new one."""
    same = isinstance(current, Tensor) and not current.requires_grad
    if same and current.shape == value.shape and current.dtype == value.dtype:
        return current.copy_(value)
    where = current.device if isinstance(current, Tensor) else device
    return value.to(where or "cpu", copy=True)


def parts_of(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container or an object of a user's class holds; None of anything else."""
    kind = type(value)
    if kind in MAPPINGS.values():
        return list(value.items())
    if kind in SEQUENCES.values() or isinstance(value, tuple):
        return list(enumerate(value))
    if isinstance(value, set | frozenset):
        return [(repr(one), None) for one in sorted(value, key=repr)]
    if isinstance(own := getattr(value, "__dict__", None), dict) and not is_foreign(kind):
        return list(own.items())
    return None


def own_classes(kinds: Iterable[type]) -> list[type]:
    """The classes of a user's, and those that they derive from, each once."""
    found = dict.fromkeys(base for kind in kinds for base in kind.__mro__)
    return [kind for kind in found if not is_foreign(kind)]


def class_values(kind: type) -> dict[str, Any]:
    """What a class itself holds that is no code."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("__") and not is_code(value) and is_attribute_value(value)
    }


def is_attribute_value(value: Any) -> bool:
    known = isinstance(value, (Tensor, np.ndarray, *GENERATORS)) or is_scalar(value)
    return known or type(value) in (*MAPPINGS.values(), *SEQUENCES.values(), tuple, set)


def is_code(value: Any) -> bool:
    return isinstance(value, (*CODE, DTensor)) or is_foreign_object(value)


def is_foreign_object(value: Any) -> bool:
    if isinstance(value, (Tensor, *GENERATORS)) or is_scalar(value):
        return False
    return is_foreign(type(value)) and type(value).__module__ != "builtins"


def is_foreign(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in FOREIGN


def is_scalar(value: Any) -> bool:
    known = (bool, int, float, complex, str, bytes, torch.dtype, np.generic)
    return value is None or isinstance(value, known)


def moves(value: Any) -> bool:
    """Whether reading it changes it."""
    return isinstance(value, Iterator) and not isinstance(value, (Tensor, *GENERATORS))


def set_generator(current: Any, kind: str, state: Any, device: torch.device) -> Any:
    """The generator at that state; a new one where there is none yet."""
    made: Any = current
    if kind == "Generator" and isinstance(state, Tensor):
        made = made if isinstance(made, torch.Generator) else torch.Generator(device)
    elif kind == "Generator" and not isinstance(made, np.random.Generator):
        made = np.random.Generator(getattr(np.random, state["bit_generator"])())
    elif kind == "RandomState" and not isinstance(made, np.random.RandomState):
        made = np.random.RandomState()
    elif kind == "Random" and not isinstance(made, random.Random):
        made = random.Random()
    set_generator_state(made, state)
    return made
