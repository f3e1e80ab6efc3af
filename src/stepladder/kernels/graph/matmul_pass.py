"""Pass: replace each large 16-bit matmul in the compiler's graph by our autotuned one.

Between matmuls the compiler fuses as before; a matmul takes its bias along.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from stepladder.kernels.matmul.matmul import DTYPES, MIN_MULTIPLICATIONS

from .graph_pass import KernelPass, recognising

aten = torch.ops.aten


class MatmulPass(KernelPass):
    """Run by Inductor on each graph, after its own passes."""

    def __call__(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            found = operands(node)
            if found is None:
                continue
            left, right, bias = found
            if is_worth_it(node, left, bias):
                node.target = torch.ops.stepladder.matmul.default
                node.args, node.kwargs = (left, right, bias), {}


@recognising
def operands(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """The matrices of a matmul, and its bias where it has one; None for every other call."""
    if node.target is aten.mm.default:
        left, right = node.args
        return left, right, None
    if node.target is aten.addmm.default and not node.kwargs:
        bias, left, right = node.args
        return left, right, bias
    return None


@recognising
def is_worth_it(node: fx.Node, left: fx.Node, bias: fx.Node | None) -> bool:
    """Whether a matmul is worth autotuning: large, on a GPU, of 16 bits and of static shape."""
    out, inner = node.meta["val"], left.meta["val"].shape[1]
    if not out.is_cuda or out.dtype not in DTYPES:
        return False
    if bias is not None and bias.meta["val"].dim() != 1:
        return False
    sizes = (*out.shape, inner)
    return all(isinstance(n, int) for n in sizes) and prod(sizes) >= MIN_MULTIPLICATIONS
