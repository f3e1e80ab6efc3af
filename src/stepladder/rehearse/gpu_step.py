"""A step on the CPU as if on a GPU: in backward too, and with recurrent layers in one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from stepladder.model.tracing.gpu_kernels import GpuKernels, gpu_attention
from stepladder.train.optimizer import master_weights
from stepladder.train.optimizer.compact import compact_adam

from .gpu_recurrent import gpu_lstm

# A CPU's autocast takes them in float32, a GPU's in the type of their inputs.
WIDENED_ON_CPU = {
    *(f"{kind}_pool3d" for kind in ("max", "avg", "adaptive_max", "adaptive_avg")),
    "max_pool3d_with_indices", "_max_pool3d", "adaptive_max_pool3d_with_indices",
    *("interpolate", "upsample", "grid_sample", "pad", "fold", "unfold"),
}  # fmt: skip


@contextmanager
def kernels_of(device: str) -> Iterator[None]:
    """Context in which a step's operations keep what they keep on that type of device."""
    if device == "cpu":
        yield
        return
    with (
        GpuStep(),
        # On a GPU one kernel each updates all parameters, and needs nothing beside them.
        mock.patch.object(master_weights, "adamw_", in_place),
        mock.patch.object(compact_adam, "adamw_", in_place),
        mock.patch.object(compact_adam, "compact_adamw_", in_place),
    ):
        yield


def in_place(*given: Any) -> None:
    pass


class GpuStep(GpuKernels):
    """What is recomputed in backward is computed as it was in forward."""

    counts_layout_copies = False  # the recorder does, by operator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is Tensor.backward:  # torch hands over its arguments by name
            with self:
                return torch.autograd.backward(
                    edges(args[0]), given.get("gradient"), given.get("retain_graph"),
                    given.get("create_graph", False), inputs=edges(given.get("inputs")),
                )  # fmt: skip
        if func is F.scaled_dot_product_attention:
            return gpu_attention(*args, **given)
        if getattr(func, "__name__", "") == "lstm" and not given:
            made = gpu_lstm(*args)
            if made is not None:
                return made
        if func is F.linear and not torch.is_autocast_enabled("cpu"):
            args = (in_rows(args[0]), *args[1:])
        if getattr(func, "__name__", "") in WIDENED_ON_CPU:
            with torch.autocast("cpu", enabled=False):
                return super().__torch_function__(func, types, args, given)
        return super().__torch_function__(func, types, args, given)


def in_rows(input: Tensor) -> Tensor:
    """The input as a GPU multiplies it: one matrix, copied where its rows are not one."""
    if input.dim() < 3 or input.is_contiguous():
        return input
    return input.flatten(0, -2).unflatten(0, input.shape[:-1])


def edges(tensors: Any) -> Any:
    """Where backward begins or ends; given tensors, torch would leave this mode to ask it again."""
    if tensors is None or isinstance(tensors, GradientEdge):
        return tensors
    if isinstance(tensors, Tensor):
        return get_gradient_edge(tensors)
    return [edges(one) for one in tensors]
