"""Autograd graphs that outlive their step, found through the live tensors that have a `grad_fn`.

A loss kept in a list keeps its whole graph, and with it every activation. Only tensors with a
Python reference are found, which are those that user code kept.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RetainedGraphs:
    """The tensors with graphs that are alive after a step, and what refers to the largest."""

    count: int
    shape: tuple[int, ...]  # of the largest
    dtype: str
    made_by: str  # the operation that made the largest
    holder: str  # what refers to it

    def __str__(self) -> str:
        tensors = (
            "1 tensor with its graph" if self.count == 1 else f"{self.count} tensors with graphs"
        )
        return (
            f"memory: {tensors} alive after the step; the largest is a {self.shape} {self.dtype} "
            f"from {self.made_by}, held by {self.holder}. "
            "Call .item() or .detach() before keeping it."
        )


def live_graphs() -> list[Tensor]:
    """Every tensor in the process that has an autograd graph."""
    gc.collect()
    return [thing for thing in gc.get_objects() if holds_graph(thing)]


def find_retained_graphs(ignore: Sequence[Tensor] = ()) -> RetainedGraphs | None:
    """The live tensors that have a graph, or None; call it after a step.

    Args:
        ignore: tensors kept on purpose, such as those alive before the step.
    """
    known = {id(tensor) for tensor in ignore}
    found = [tensor for tensor in live_graphs() if id(tensor) not in known]
    if not found:
        return None
    largest, holder = find_holder(found)
    assert largest.grad_fn is not None
    dtype = str(largest.dtype).removeprefix("torch.")
    made_by = largest.grad_fn.name().removeprefix("torch::autograd::")
    return RetainedGraphs(len(found), tuple(largest.shape), dtype, made_by, holder)


MAX_SEARCHED = 8
RUNNING = "a variable of a running function, or a graph that saved it"


def holds_graph(thing: Any) -> bool:
    return issubclass(type(thing), Tensor) and thing.grad_fn is not None


def find_holder(found: list[Tensor]) -> tuple[Tensor, str]:
    """The largest tensor, and what refers to it in words.

    Among equals one in a container, since a local variable disappears by itself. Each search for
    referrers walks the whole heap, so only a few tensors are searched for.
    """
    size = max(tensor.nbytes for tensor in found)
    equals = [tensor for tensor in found if tensor.nbytes == size][:MAX_SEARCHED]
    for tensor in equals:
        for holder in gc.get_referrers(tensor):
            if holder is found or holder is equals or isinstance(holder, types.FrameType):
                continue
            if words := describe_holder(holder, tensor):
                return tensor, words
    return equals[0], RUNNING


def describe_holder(holder: Any, tensor: Tensor) -> str:
    if isinstance(holder, dict):
        return describe_dict(holder, tensor)
    if isinstance(holder, list | tuple | set):
        return f"a {type(holder).__name__} of length {len(holder)}"
    if isinstance(holder, types.CellType):
        return "a variable that a function closed over"
    names = [name for name, value in instance_values(holder).items() if value is tensor]
    return f"{type(holder).__name__}.{names[0]}" if names else ""


def describe_dict(holder: dict[Any, Any], tensor: Tensor) -> str:
    key = next((key for key, value in holder.items() if value is tensor), None)
    if "__name__" in holder and "__builtins__" in holder:
        return f"the module {holder['__name__']} as {key}"
    for owner in gc.get_referrers(holder):
        if getattr(owner, "__dict__", None) is holder:
            return f"{type(owner).__name__}.{key}"
    return f"a dict of length {len(holder)} under {key!r}"


def instance_values(thing: Any) -> dict[str, Any]:
    values = getattr(thing, "__dict__", {})
    return dict(values) if isinstance(values, dict | types.MappingProxyType) else {}
