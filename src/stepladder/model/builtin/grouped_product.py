"""Products by groups: rows sorted by group, each group multiplied by a matrix of its own.

torch's grouped product is one kernel for all groups, and reads where each group ends on the device.
Its CUDA kernels take bf16 and rows of a multiple of 16 bytes; on CPUs it takes float types of up to
32 bits, outside of compiled graphs. Everything else runs a loop over the groups, which asks the
device where they end; to the compiler the loop is one operator.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FIRST_CAPABILITY = (8, 0)  # of NVIDIA's devices, that the kernel runs on
ALIGNED = 8  # bf16 numbers in 16 bytes
NARROW = (torch.float32, torch.bfloat16, torch.float16)


def grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Each group of rows times its matrix; rows of no group are undefined.

    Args:
        rows: (rows, inner), sorted by group.
        matrices: (groups, inner, columns).
        ends: where each group ends, int32 on the rows' device.
    """
    if has_kernel(rows, matrices):
        return F.grouped_mm(rows, matrices, offs=ends)
    return grouped_loop(rows, matrices, ends)


def has_kernel(rows: Tensor, matrices: Tensor) -> bool:
    """Whether torch's grouped product takes these here."""
    if not hasattr(F, "grouped_mm") or rows.dtype != matrices.dtype:
        return False
    kind = rows.device.type
    if kind != "cuda":  # on meta, torch asks for what its CUDA kernels take
        return kind == "cpu" and rows.dtype in NARROW and not torch.compiler.is_compiling()
    aligned = matrices.shape[1] % ALIGNED == 0 and matrices.shape[2] % ALIGNED == 0
    able = torch.version.hip is None and (
        torch.cuda.get_device_capability(rows.device) >= FIRST_CAPABILITY
    )
    return rows.dtype == torch.bfloat16 and aligned and able


@torch.library.custom_op("stepladder::grouped_loop", mutates_args=())
def grouped_loop(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    out = rows.new_zeros(rows.shape[0], matrices.shape[2])
    for group, (first, end) in enumerate(pairwise([0, *ends.tolist()])):
        if end > first:
            out[first:end] = rows[first:end] @ matrices[group]
    return out


@grouped_loop.register_fake
def _(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[2])


@torch.library.custom_op("stepladder::grouped_loop_backward", mutates_args=())
def grouped_loop_backward(
    gradient: Tensor, rows: Tensor, matrices: Tensor, ends: Tensor
) -> tuple[Tensor, Tensor]:
    of_rows = rows.new_zeros(rows.shape)
    of_matrices = matrices.new_zeros(matrices.shape)
    for group, (first, end) in enumerate(pairwise([0, *ends.tolist()])):
        if end > first:
            of_rows[first:end] = gradient[first:end] @ matrices[group].mT
            of_matrices[group] = rows[first:end].mT @ gradient[first:end]
    return of_rows, of_matrices


@grouped_loop_backward.register_fake
def _(gradient: Tensor, rows: Tensor, matrices: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape), matrices.new_empty(matrices.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *grouped_loop_backward(gradient.contiguous(), *ctx.saved_tensors), None


grouped_loop.register_autograd(_backward, setup_context=_keep)
