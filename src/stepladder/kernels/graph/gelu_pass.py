"""A linear and GELU in the module's graph, where a linear follows, handed to ours as one.

Done before the compiler differentiates, because it takes GELU's gradient apart; ours stays whole
until ending_pass.py has put it into the following linear's gradient (matmul/linear_gelu.py).
"""

from __future__ import annotations

from math import prod
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from stepladder.kernels.matmul import linear_gelu as gelu  # noqa: F401  registers what torch.ops.stepladder serves
from stepladder.kernels.matmul.matmul import FEWEST, TYPES

from .graph_pass import KernelPass, recognising

LINEAR, GELU = functional.linear, functional.gelu


class GeluPass(KernelPass):
    """Run by the compiler over the graph of the module's own calls."""

    def __call__(self, graph: fx.Graph) -> None:
        for active in list(graph.nodes):
            inner = linear_of(active)
            if inner is None or not pays(*inner.args):
                continue
            with graph.inserting_before(active):
                both = graph.call_function(torch.ops.stepladder.gelu_linear.default, inner.args)
                out = graph.call_function(getitem, (both, 0))
            out.meta.update(active.meta)
            active.replace_all_uses_with(out)
            for node in (active, inner):
                graph.erase_node(node)


@recognising
def linear_of(active: Any) -> Any:
    """The linear with a bias whose result goes through this GELU alone, and then into a linear
    alone; None for all else."""
    if active.target is not GELU or active.kwargs != {"approximate": "tanh"}:
        return None
    inner, *rest = active.args
    if rest or not isinstance(inner, fx.Node) or inner.target is not LINEAR:
        return None
    if inner.kwargs or len(inner.args) != 3 or inner.args[2] is None or len(inner.users) > 1:
        return None
    (user, *more) = active.users or (None,)
    follows = user is not None and user.target is LINEAR and user.args[:1] == (active,)
    return inner if follows and not more else None


@recognising
def pays(*operands: Any) -> bool:
    """Whether it is large, on a GPU, all of one 16-bit type and of known size."""
    values: list[Any] = [node.meta.get("example_value") for node in operands]
    if not all(isinstance(value, Tensor) for value in values):
        return False
    if {value.dtype for value in values} - set(TYPES) or len({v.dtype for v in values}) > 1:
        return False
    if not values[0].is_cuda or torch.is_autocast_enabled("cuda"):
        return False
    sizes = (*values[0].shape, len(values[1]))
    return all(isinstance(n, int) for n in sizes) and prod(sizes) >= FEWEST
