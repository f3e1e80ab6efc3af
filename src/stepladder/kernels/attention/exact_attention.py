"""Attention of exact runs: cuDNN's forward pass, and a backward pass of our own with fixed sums.

torch leaves cuDNN's attention where algorithms must be deterministic, because its backward pass
adds up the gradients of queries in whichever order programs end. What is left is flash attention,
whose deterministic backward pass has programs wait for each other:
`benchmarks/exact_gpu.py --attention` compares them. Ours gives each number to one program.

The operators of flash attention are overridden, so that every module gets it, eager or compiled.
The override acts only while deterministic algorithms are asked for, on what it can compute; for all
else it calls torch's own kernels. Where the user has activated another flash attention (FA3, FA4),
which has a deterministic form of its own, nothing is overridden.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import current_flash_attention_impl

from stepladder.kernels.backend import triton
from stepladder.seam.operators import (
    CUDNN_ATTENTION,
    FLASH_ATTENTION,
    FLASH_ATTENTION_BACKWARD,
    operator,
    override_kernel,
)

try:
    from stepladder.kernels.triton import triton_attention as programs
except ModuleNotFoundError:
    programs = None  # type: ignore[assignment]

MEASURED = (9, 0)  # the compute capability for which the tiles were measured to win
WIDEST = 128
ADDRESSED = 2**31  # offsets within one head

Kernel = Callable[..., Any]


def use_exact_attention(device: torch.device) -> bool:
    """Have exact steps on this device attend with fixed sums; whether they do."""
    if device.type != "cuda" or triton is None or current_flash_attention_impl() is not None:
        return False
    return torch.cuda.get_device_capability(device) == MEASURED and override()


@cache  # once in a process
def override() -> bool:
    if operator(CUDNN_ATTENTION) is None:
        return False
    backward = override_kernel(FLASH_ATTENTION_BACKWARD, "CUDA", exact_backward)
    return backward and override_kernel(FLASH_ATTENTION, "CUDA", exact_forward)


def exact_forward(torchs: Kernel) -> Kernel:
    cudnn = operator(CUDNN_ATTENTION)
    assert cudnn is not None

    def forward(
        keys: Any, query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0,
        causal: bool = False, debug: bool = False, *, scale: float | None = None,
    ) -> Any:  # fmt: skip
        if debug or not computes(query, key, value, dropout, causal):
            return torchs(keys, query, key, value, dropout, causal, debug, scale=scale)
        out, norms, *_ = cudnn(query, key, value, None, True, 0.0, causal, False, scale=scale)
        wanted = torch.empty_like(query)
        if out.stride() != wanted.stride():  # compiled code relies on flash attention's layout
            out = wanted.copy_(out)
        seed = torch.empty(2, dtype=torch.uint64, device=query.device)
        nothing = torch.empty(0, dtype=query.dtype, device=query.device)
        norms = norms.reshape(query.shape[:3]).contiguous()
        lengths = query.shape[2], key.shape[2]
        return out, norms, None, None, *lengths, seed, seed.new_empty(()), nothing

    return forward


def exact_backward(torchs: Kernel) -> Kernel:
    def backward(
        keys: Any, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
        norms: Tensor, *rest: Any, scale: float | None = None,
    ) -> Any:  # fmt: skip
        *_, dropout, causal, _, _ = rest
        if not computes(query, key, value, dropout, causal):
            return torchs(keys, gradient, query, key, value, out, norms, *rest, scale=scale)
        return attention_backward(
            gradient, query, key, value, out, norms, causal=causal, scale=scale
        )

    return backward


def computes(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool) -> bool:
    """Whether a step asks for fixed sums, and the programs can compute these."""
    if not torch.are_deterministic_algorithms_enabled() or dropout:
        return False
    rows, columns, width = query.shape[2], key.shape[2], query.shape[3]
    square = not causal or rows == columns
    same = width == value.shape[3] and query.dtype in (torch.bfloat16, torch.float16)
    return square and same and width <= WIDEST and min(query.numel(), key.numel()) > 0


def attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, norms: Tensor,
    *, causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value, laid out as these are."""
    gradient, query, key, value, out = (
        each if fits(each) else each.contiguous() for each in (gradient, query, key, value, out)
    )
    made = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    scale = query.shape[3] ** -0.5 if scale is None else scale
    programs.backward(
        gradient, query, key, value, out, norms.contiguous(), made, causal=causal, scale=scale
    )
    return made


def fits(tensor: Tensor) -> bool:
    """Whether the programs can address a tensor as it lies in memory."""
    return tensor.stride(3) == 1 and tensor.shape[2] * abs(tensor.stride(2)) < ADDRESSED
