"""Products in the compiler's graph, handed to ours.

Between the products the compiler fuses as before; a product that is large enough for a choice to
pay becomes one of `kernels.products`, with its bias where it has one.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from stepladder.kernels.matmul.matmul import FEWEST, TYPES

aten = torch.ops.aten


class MatmulPass(CustomGraphPass):
    """Run by the compiler over each graph, after its own changes."""

    def __call__(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            bias = None
            if node.target is aten.mm.default:
                left, right = node.args
            elif node.target is aten.addmm.default and not node.kwargs:
                bias, left, right = node.args
            else:
                continue
            if pays(node, left, bias):
                node.target = torch.ops.stepladder.product.default
                node.args, node.kwargs = (left, right, bias), {}

    def uuid(self) -> Any:
        """For the compiler's cache: what this pass does is what its source says."""
        return get_hash_for_files((__file__,))


def pays(node: fx.Node, left: fx.Node, bias: fx.Node | None) -> bool:
    """Whether a product is one that ways are tried for: large, of 16 bits, of known size."""
    out, inner = node.meta["val"], left.meta["val"].shape[1]
    if not out.is_cuda or out.dtype not in TYPES:
        return False
    if bias is not None and bias.meta["val"].dim() != 1:
        return False
    sizes = (*out.shape, inner)
    return all(isinstance(n, int) for n in sizes) and prod(sizes) >= FEWEST
