"""Pass: fuse the sum or GELU backward that follows a large matmul into the matmul's epilogue.

A block adds its output to its input, and the next norm reads the sum. Compiled as it stands, the
norm reads both summands, whoever needs the sum later reads both again, and the matmul's result is
saved beside the input for backward. Summed by the matmul itself, the sum is written, read and saved
once, and rounded once. The pass runs on the joint graph of forward and backward, before the
partitioner decides what is saved. Sums of gradients are left alone: the compiler computes those in
float32, where ours would round in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from stepladder.seam.operators import Operators

from .graph_pass import KernelPass, recognising
from .matmul_pass import is_worth_it, operands

aten, ours = torch.ops.aten, torch.ops.stepladder
VIEWS = Operators(("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"))


class EpiloguePass(KernelPass):
    """Run by Inductor on the joint graph of forward and backward."""

    def __call__(self, graph: fx.Graph) -> None:
        backward = after_tangents(graph)
        for node in list(graph.nodes):
            if node.target is ours.gelu_backward.default:
                fuse_gelu_backward(graph, node)
            elif node.target is aten.add.Tensor and node not in backward and not node.kwargs:
                fuse_sum(graph, node)


def after_tangents(graph: fx.Graph) -> set[fx.Node]:
    """Nodes of the backward: those that depend on the gradient of an output."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        given = node.op == "placeholder" and node.name.startswith("tangents")
        if given or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def fuse_sum(graph: fx.Graph, total: fx.Node) -> None:
    """Have a matmul add another tensor of its result's shape and type."""
    found = fusable_sum(total)
    if found is None:
        return
    chain, (left, right, bias), other = found
    with graph.inserting_before(total):
        given = left, right, bias, view(graph, other, chain[-1])
        made = call(graph, ours.matmul_add.default, given, chain[-1])
        replace(graph, total, made, chain)


@recognising
def fusable_sum(total: fx.Node) -> tuple[list[Any], tuple[Any, Any, Any], Any] | None:
    """The views back to a matmul that can add the other summand, its operands, and the summand."""
    one, two = total.args
    for result, other in ((one, two), (two, one)):
        chain = matmul_behind(result)
        if chain is not None and can_be_fused(other, chain, total):
            given = operands(chain[-1])
            return given and (chain, given, other)
    return None


def fuse_gelu_backward(graph: fx.Graph, backward: fx.Node) -> None:
    """Have a matmul apply GELU's backward to its result."""
    found = fusable_gelu(backward)
    if found is None:
        return
    chain, (left, right), aux = found
    with graph.inserting_before(backward):
        given = left, right, view(graph, aux, chain[-1])
        made = call(graph, ours.matmul_gelu_backward.default, given, chain[-1])
        replace(graph, backward, made, chain)


@recognising
def fusable_gelu(backward: Any) -> tuple[list[Any], tuple[Any, Any], Any] | None:
    """The views back to a matmul whose result GELU's backward takes alone, its operands, and what
    the backward takes beside it."""
    result, aux = backward.args
    chain = matmul_behind(result)
    if chain is None or chain[-1].target is not aten.mm.default:
        return None
    left, right = chain[-1].args
    one_size = aux.meta["val"].numel() == chain[-1].meta["val"].numel()
    return (chain, (left, right), aux) if one_size else None


@recognising
def matmul_behind(result: Any) -> list[Any] | None:
    """Views from a result back to the large matmul that computed it, each with a single user."""
    chain = list(through_views(result))
    matmul = chain[-1] if chain else None
    if matmul is None or any(len(node.users) > 1 for node in chain):
        return None
    if matmul.target is aten.mm.default:
        return chain if is_worth_it(matmul, matmul.args[0], None) else None
    if matmul.target is not aten.addmm.default or matmul.kwargs:
        return None
    return chain if is_worth_it(matmul, matmul.args[1], matmul.args[0]) else None


def through_views(node: Any) -> Iterator[Any]:
    """A node, and through views back to the node it is a view of."""
    while isinstance(node, fx.Node):
        yield node
        node = node.args[0] if node.target in VIEWS else None


@recognising
def can_be_fused(other: Any, chain: list[Any], total: fx.Node) -> bool:
    """Whether the sum neither broadcasts nor promotes, and what is added is contiguous.

    Under autocast the residual stream is float32: summed by the matmul, it would be rounded.
    """
    if not isinstance(other, fx.Node):
        return False
    value, wanted, result = other.meta["val"], total.meta["val"], chain[0].meta["val"]
    one_type = value.dtype == wanted.dtype == chain[-1].meta["val"].dtype
    one_shape = value.shape == wanted.shape == result.shape
    return one_type and one_shape and value.is_contiguous()


def view(graph: fx.Graph, node: Any, like: fx.Node) -> fx.Node:
    return call(graph, aten.view.default, (node, list(like.meta["val"].shape)), like)


def call(graph: fx.Graph, target: Any, given: tuple[Any, ...], like: fx.Node) -> fx.Node:
    made = graph.call_function(target, given)
    made.meta.update(like.meta)
    return made


def replace(graph: fx.Graph, old: fx.Node, made: fx.Node, chain: list[fx.Node]) -> None:
    old.replace_all_uses_with(view(graph, made, old))
    for node in (old, *chain):
        graph.erase_node(node)
