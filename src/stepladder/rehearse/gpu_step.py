"""A step on the CPU as if on a GPU: backward too, and attention with dropout in one kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from stepladder.model.tracing.gpu_kernels import GpuKernels


def kernels_of(device: str) -> AbstractContextManager[Any]:
    """Context in which a step's operations keep what they keep on that type of device."""
    return nullcontext() if device == "cpu" else GpuStep()


class GpuStep(GpuKernels):
    """What is recomputed in backward is computed as it was in forward."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is Tensor.backward:  # torch hands over its arguments by name
            with self:
                return torch.autograd.backward(
                    edges(args[0]), given.get("gradient"), given.get("retain_graph"),
                    given.get("create_graph", False), inputs=edges(given.get("inputs")),
                )  # fmt: skip
        if func is F.scaled_dot_product_attention and "dropout_p" in given:
            given = {**given, "dropout_p": 0.0}  # a CPU would write whole matrices for it
        return super().__torch_function__(func, types, args, given)


def edges(tensors: Any) -> Any:
    """Where backward begins or ends; given tensors, torch would leave this mode to ask it again."""
    if tensors is None or isinstance(tensors, GradientEdge):
        return tensors
    if isinstance(tensors, Tensor):
        return get_gradient_edge(tensors)
    return [edges(one) for one in tensors]
