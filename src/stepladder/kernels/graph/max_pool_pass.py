"""Max pooling in the module's graph, handed to ours (kernels/max_pool.py).

Done before the compiler differentiates, because the gain is in the gradient. Only the pooling that
convolutional nets begin with, windows of 3 × 3 that step by 2, of images with channels innermost.
"""

from __future__ import annotations

from math import prod
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from stepladder.kernels import max_pool  # noqa: F401  registers what torch.ops.stepladder serves
from stepladder.kernels.backend import TILED

from .graph_pass import KernelPass, recognising

POOLS = (functional.max_pool2d, torch.max_pool2d)
# What both take, in order.
NAMES = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
# Two megabytes of 16-bit numbers, which a GPU moves in the time it takes to start a kernel: of
# smaller images there is nothing to gain.
FEWEST = 2**20


class MaxPoolPass(KernelPass):
    """Run by the compiler over the graph of the module's own calls."""

    def __call__(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            images = pooled_images(node)
            if images is None or not pays(images):
                continue
            with graph.inserting_before(node):
                both = graph.call_function(torch.ops.stepladder.max_pool.default, (images,))
                best = graph.call_function(getitem, (both, 0))
            best.meta.update(node.meta)
            node.replace_all_uses_with(best)
            graph.erase_node(node)


@recognising
def pooled_images(node: fx.Node) -> fx.Node | None:
    """What a pooling of the kind is given; None for every other call."""
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
    """A size for both sides, as torch takes it: one number, one in a list, or two."""
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,)
    return sizes * 2 if len(sizes) == 1 else sizes


@recognising
def pays(images: fx.Node) -> bool:
    """Whether they are many, on a GPU, with channels innermost and of known size."""
    value = images.meta.get("example_value")
    if not isinstance(value, Tensor) or not value.is_cuda:
        return False
    if value.dtype not in TILED or not all(isinstance(n, int) for n in value.shape):
        return False
    innermost = value.is_contiguous(memory_format=torch.channels_last)
    return innermost and prod(value.shape) >= FEWEST
