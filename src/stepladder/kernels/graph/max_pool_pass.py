"""Pass: replace 3 × 3 max pooling of stride 2, as at the start of a ResNet, by ours (max_pool.py).

It runs before autograd, because the gain is in the backward. Only channels-last images are taken.
"""

from __future__ import annotations

from math import prod
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from stepladder.kernels import max_pool  # noqa: F401  registers its operators
from stepladder.kernels.backend import TRITON_DTYPES

from .graph_pass import KernelPass, recognising

POOLS = (functional.max_pool2d, torch.max_pool2d)
# The arguments of both, in order.
NAMES = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
# Two megabytes in 16 bits, which a GPU moves in the time of a kernel launch: with fewer there is
# nothing to gain.
MIN_ELEMENTS = 2**20


class MaxPoolPass(KernelPass):
    """Run by Inductor on the graph of the module's own calls, before autograd."""

    def __call__(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            images = pooled_images(node)
            if images is None or not is_worth_it(images):
                continue
            with graph.inserting_before(node):
                both = graph.call_function(torch.ops.stepladder.max_pool.default, (images,))
                best = graph.call_function(getitem, (both, 0))
            best.meta.update(node.meta)
            node.replace_all_uses_with(best)
            graph.erase_node(node)


@recognising
def pooled_images(node: fx.Node) -> fx.Node | None:
    """The input of a 3 × 3 pooling of stride 2 and padding 1; None for every other call."""
    if node.op != "call_function" or node.target not in POOLS:
        return None
    given: dict[str, Any] = {**dict(zip(NAMES, node.args)), **node.kwargs}
    sizes = [given.get(name) for name in ("kernel_size", "stride", "padding")]
    ours = [pair(size) for size in sizes] == [(3, 3), (2, 2), (1, 1)]
    ours = ours and pair(given.get("dilation", 1)) == (1, 1)
    if not ours or given.get("ceil_mode") or given.get("return_indices"):
        return None
    return given["input"]


def pair(size: Any) -> tuple[Any, ...]:
    """A size for both sides from any form torch takes: one number, a list of one, or two."""
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,)
    return sizes * 2 if len(sizes) == 1 else sizes


@recognising
def is_worth_it(images: fx.Node) -> bool:
    """Whether the images are large, on a GPU, channels-last and of static shape."""
    value = images.meta.get("example_value")
    if not isinstance(value, Tensor) or not value.is_cuda:
        return False
    if value.dtype not in TRITON_DTYPES or not all(isinstance(n, int) for n in value.shape):
        return False
    innermost = value.is_contiguous(memory_format=torch.channels_last)
    return innermost and prod(value.shape) >= MIN_ELEMENTS
