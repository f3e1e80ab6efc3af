"""Pass: replace linear, GELU, linear by our fused linear_gelu and a linear.

It runs before autograd, because the compiler decomposes GELU's backward; ours stays one node until
epilogue_pass.py fuses it into the backward of the following linear (matmul/linear_gelu.py).
"""

from __future__ import annotations

from math import prod
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from stepladder.kernels.matmul import linear_gelu  # noqa: F401  registers its operators
from stepladder.kernels.matmul.matmul import DTYPES, MIN_MULTIPLICATIONS

from .graph_pass import KernelPass, recognising

LINEAR, GELU = functional.linear, functional.gelu


class GeluPass(KernelPass):
    """Run by Inductor on the graph of the module's own calls, before autograd."""

    def __call__(self, graph: fx.Graph) -> None:
        for gelu in list(graph.nodes):
            inner = linear_of(gelu)
            if inner is None or not is_worth_it(*inner.args):
                continue
            with graph.inserting_before(gelu):
                both = graph.call_function(torch.ops.stepladder.linear_gelu.default, inner.args)
                out = graph.call_function(getitem, (both, 0))
            out.meta.update(gelu.meta)
            gelu.replace_all_uses_with(out)
            for node in (gelu, inner):
                graph.erase_node(node)


@recognising
def linear_of(gelu: Any) -> Any:
    """The linear with a bias that feeds only this GELU, which feeds only a linear; else None."""
    if gelu.target is not GELU or gelu.kwargs != {"approximate": "tanh"}:
        return None
    inner, *rest = gelu.args
    if rest or not isinstance(inner, fx.Node) or inner.target is not LINEAR:
        return None
    if inner.kwargs or len(inner.args) != 3 or inner.args[2] is None or len(inner.users) > 1:
        return None
    (user, *more) = gelu.users or (None,)
    follows = user is not None and user.target is LINEAR and user.args[:1] == (gelu,)
    return inner if follows and not more else None


@recognising
def is_worth_it(*operands: Any) -> bool:
    """Whether the matmul is large, on a GPU, of one 16-bit type and of static shape."""
    values: list[Any] = [node.meta.get("example_value") for node in operands]
    if not all(isinstance(value, Tensor) for value in values):
        return False
    if {value.dtype for value in values} - set(DTYPES) or len({v.dtype for v in values}) > 1:
        return False
    if not values[0].is_cuda or torch.is_autocast_enabled("cuda"):
        return False
    sizes = (*values[0].shape, len(values[1]))
    return all(isinstance(n, int) for n in sizes) and prod(sizes) >= MIN_MULTIPLICATIONS
