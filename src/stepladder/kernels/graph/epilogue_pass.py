"""Pass: the sum or GELU after a matmul moves into its epilogue (kernels/matmul).

A block adds what it computed to its input, and the next norm reads the sum: compiled as it stands,
the norm reads both summands, whoever needs the sum later reads both again, and the product's result
is kept beside the input for the backward pass. Summed by the product itself it is read once each
time and kept once, and rounded once. Done in the graph of both passes, before the compiler decides
what is kept. Gradients' sums are left alone: there the compiler sums in float32 what ours would
round in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from stepladder.seam.operators import Operators

from .graph_pass import KernelPass, recognising
from .matmul_pass import pays

aten, ours = torch.ops.aten, torch.ops.stepladder
VIEWS = Operators(("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"))


class EpiloguePass(KernelPass):
    """Run by the compiler over the graph of forward and backward."""

    def __call__(self, graph: fx.Graph) -> None:
        backward = after_tangents(graph)
        for node in list(graph.nodes):
            if node.target is ours.gelu_slope.default:
                take_slope(graph, node)
            elif node.target is aten.add.Tensor and node not in backward and not node.kwargs:
                take_sum(graph, node)


def after_tangents(graph: fx.Graph) -> set[fx.Node]:
    """What depends on a gradient from outside."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        given = node.op == "placeholder" and node.name.startswith("tangents")
        if given or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def take_sum(graph: fx.Graph, total: fx.Node) -> None:
    """A product and another tensor of its size and type, summed by the product."""
    for shown, other in (total.args, reversed(total.args)):
        chain = product_behind(shown)
        if chain is None or not same_kind(other, chain, total):
            continue
        *bias, left, right = chain[-1].args
        with graph.inserting_before(total):
            rows = view(graph, other, chain[-1])
            given = left, right, bias[0] if bias else None, rows
            made = call(graph, ours.product_sum.default, given, chain[-1])
            replace(graph, total, made, chain)
        return


def take_slope(graph: fx.Graph, slope: fx.Node) -> None:
    """GELU's slope of a product, by the product."""
    shown, beside = slope.args
    chain = product_behind(shown)
    if chain is None or chain[-1].target is not aten.mm.default:
        return
    with graph.inserting_before(slope):
        given = *chain[-1].args, view(graph, beside, chain[-1])
        made = call(graph, ours.gelu_gradient.default, given, chain[-1])
        replace(graph, slope, made, chain)


@recognising
def product_behind(shown: Any) -> list[Any] | None:
    """From what is shown of a large product back to it, each read by nobody else."""
    chain = list(backwards(shown))
    product = chain[-1] if chain else None
    if product is None or any(len(node.users) > 1 for node in chain):
        return None
    if product.target is aten.mm.default:
        return chain if pays(product, product.args[0], None) else None
    if product.target is not aten.addmm.default or product.kwargs:
        return None
    return chain if pays(product, product.args[1], product.args[0]) else None


def backwards(node: Any) -> Iterator[Any]:
    """A tensor and what it is a view of."""
    while isinstance(node, fx.Node):
        yield node
        node = node.args[0] if node.target in VIEWS else None


@recognising
def same_kind(other: Any, chain: list[Any], total: fx.Node) -> bool:
    """Whether the sum spreads out and widens neither, and what is added lies row after row.

    Autocast's stream is of float32 and widens the product: summed by it, it would lose its bits.
    """
    if not isinstance(other, fx.Node):
        return False
    value, wanted, shown = other.meta["val"], total.meta["val"], chain[0].meta["val"]
    one_type = value.dtype == wanted.dtype == chain[-1].meta["val"].dtype
    one_shape = value.shape == wanted.shape == shown.shape
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
