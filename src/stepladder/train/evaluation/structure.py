"""How outputs and targets are nested, apart from their tensors, so that both can travel and join.

Classes are kept: a metric is given what a loss is given, a Hugging Face output among others. What
is no tensor, such as a cache of keys and values, has no rows and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Structure:
    """A nest without its tensors."""

    kind: type | None = None  # Tensor, or the class of a container; None: left out
    names: tuple[Any, ...] = ()  # keys of a mapping, fields of a dataclass
    parts: tuple[Structure, ...] = ()

    def build(self, tensors: Iterator[Tensor]) -> Any:
        """The nest with these tensors; None in place of what was left out."""
        if self.kind is Tensor:
            return next(tensors)
        values = [part.build(tensors) for part in self.parts]
        if self.kind is None:
            return None
        if self.names:
            named = dict(zip(self.names, values))
            return self.kind(**named) if is_dataclass(self.kind) else named
        return self.kind(*values) if hasattr(self.kind, "_fields") else self.kind(values)


LEFT_OUT = Structure()


def take_apart(value: Any) -> tuple[Structure, list[Tensor]]:
    """A nest's structure and its tensors, in the order in which `build` takes them."""
    if isinstance(value, Tensor):
        return Structure(Tensor), [value]
    kind, names, inside = contents(value)
    if kind is None:
        return LEFT_OUT, []
    taken = [take_apart(part) for part in inside]
    tensors = [tensor for _, own in taken for tensor in own]
    return Structure(kind, names, tuple(structure for structure, _ in taken)), tensors


def contents(value: Any) -> tuple[type | None, tuple[Any, ...], tuple[Any, ...]]:
    """A container's class, the names in it if it has any, and its parts; None: it is none."""
    if isinstance(value, Mapping):
        kind = type(value) if is_dataclass(value) else dict
        return kind, tuple(value), tuple(value.values())
    if isinstance(value, tuple | list):
        return type(value), (), tuple(value)
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in fields(value) if field.init)
        return type(value), names, tuple(getattr(value, name) for name in names)
    return None, (), ()
