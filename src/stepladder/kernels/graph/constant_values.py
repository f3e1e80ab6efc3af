"""Tensors in a compiled graph that depend on no input: masks and positions made of sizes alone.

They are computed as the graph says, once, while it is compiled. Only known calls are followed:
those that make a tensor of given numbers, and those that change one in a way that has one result.
Nothing that reads an input, a parameter or a buffer is constant, and nothing random is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

MAKE = "arange eye full ones scalar_tensor tensor zeros"
LIKE = "full_like new_full new_ones new_tensor new_zeros ones_like zeros_like"
CHANGE = (
    "abs add all and_ any bitwise_and bitwise_not bitwise_or bool broadcast_to clamp clone "
    "contiguous cumsum detach diff div eq expand expand_as fill_ flatten float floordiv ge "
    "getitem gt iadd iand int inv invert ior isub le logical_and logical_not logical_or long lt "
    "masked_fill masked_fill_ maximum minimum mul ne neg or_ permute remainder repeat reshape "
    "rsub setitem sub sum t to transpose tril tril_ triu triu_ truediv type type_as unsqueeze "
    "view where xor"
)
KNOWN = frozenset(f"{MAKE} {LIKE} {CHANGE}".split())
IN_PLACE = (
    "setitem iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv "
    "ixor"
)
WRITES = frozenset(IN_PLACE.split())
LARGEST = 2**29  # elements of one tensor

Values = Mapping[fx.Node, Any]


def walk(graph: fx.Graph, inputs: Values) -> Iterator[tuple[fx.Node, Values]]:
    """Each node that is not constant, in order, with the values of all constants before it.

    Constants are computed on the CPU, so that the memory of a GPU does not show it. A tensor that
    an input is written into is constant no longer, and nor is any other from there on.

    Args:
        inputs: placeholders whose values are known to whoever calls this graph.
    """
    values = dict(inputs)
    for node in graph.nodes:
        if node in values:
            continue
        given = node.all_input_nodes
        if is_known(node) and all(each in values for each in given):
            values[node] = compute(node, values)
            continue
        if may_write(node) and any(each in values for each in given):
            values.clear()
        yield node, values


def compute(node: fx.Node, values: Values) -> Any:
    def value_of(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return values[argument]
        elsewhere = isinstance(argument, torch.device) or str(argument).startswith("cuda")
        return torch.device("cpu") if elsewhere else argument

    args, named = fx.node.map_aggregate((node.args, node.kwargs), value_of)
    with torch.no_grad():
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **named)
        assert callable(node.target)
        return node.target(*args, **named)


def is_known(node: fx.Node) -> bool:
    """Whether a call has one result, and one that is small enough to look at."""
    if node.op not in ("call_function", "call_method") or "out" in node.kwargs:
        return False
    example = node.meta.get("example_value")
    small = not isinstance(example, Tensor) or example.numel() <= LARGEST
    return small and name_of(node) in KNOWN


def may_write(node: fx.Node) -> bool:
    """Whether a call may change a tensor that it is given."""
    name = name_of(node)
    in_place = name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_")
    return in_place or name in WRITES or bool({"out", "inplace"} & set(node.kwargs))


def name_of(node: fx.Node) -> str:
    """What a node calls, by one name: torch's releases write `a == b` as eq or as a.__eq__(b)."""
    target = node.target
    name = target if isinstance(target, str) else str(getattr(target, "__name__", ""))
    if not (name.startswith("__") and name.endswith("__")):
        return name
    return f"{plain}_" if (plain := name[2:-2]) in ("and", "or") else plain
