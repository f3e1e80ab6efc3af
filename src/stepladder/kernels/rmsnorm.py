"""RMSNorm in one pass forward and one pass backward: y = x / sqrt(mean(x²) + eps) · weight.

Plain torch reads and writes the rows once per arithmetic step; this reads them once, keeps one
float32 per row for the backward pass, and answers in the type of x. The mathematics, the float32
sums and the argument order are those of `torch.nn.functional.rms_norm`.
"""

from typing import Any

import torch
from torch import Tensor

from stepladder.errors import ModelError

from .backend import accumulator, runs_triton

try:
    from .triton import triton_rmsnorm as tiles
except ModuleNotFoundError:
    tiles = None  # type: ignore[assignment]

WIDEST = 16384  # what one Triton program holds; the same everywhere, so a laptop finds it out first


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide each row of the last dim by its root mean square and multiply it by `weight`."""
    width = x.shape[-1]
    if weight.shape != (width,):
        problem = f"shape {tuple(weight.shape)} does not fit rows of {width}"
        raise ModelError("rms_norm.weight", problem, f"Give it shape ({width},).")
    if width > WIDEST:
        problem = f"rows of {width} are wider than the {WIDEST} one program holds"
        raise ModelError("rms_norm", problem, "Use torch.nn.functional.rms_norm for this layer.")
    return _RMSNorm.apply(x, weight, eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, scales = torch.ops.stepladder.rms_norm.default(x, weight, eps)
        ctx.save_for_backward(x, weight, scales)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        dx, dweight = torch.ops.stepladder.rms_norm_backward.default(dy, *ctx.saved_tensors)
        return dx, dweight, None


def _rows(x: Tensor) -> Tensor:
    """See a tensor as a matrix of rows whose elements are neighbours."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows = _rows(x)
    way = tiles.forward if runs_triton(x) and rows.numel() else _torch_forward
    y, scales = way(rows, weight.contiguous(), eps)
    return y.view(x.shape), scales


def _backward(dy: Tensor, x: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    rows = _rows(x)
    way = tiles.backward if runs_triton(x) and rows.numel() else _torch_backward
    dx, dweight = way(_rows(dy), rows, weight.contiguous(), scales)
    return dx.view(x.shape), dweight


def _torch_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    values = x.to(accumulator(x))
    scales = torch.rsqrt(values.square().mean(1) + eps)
    return (values * scales[:, None] * weight).to(x.dtype), scales


def _torch_backward(dy: Tensor, x: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    grad, normed = dy.to(scales.dtype), x.to(scales.dtype) * scales[:, None]
    dweight = (grad * normed).sum(0).to(weight.dtype)
    grad = grad * weight
    along = (grad * normed).mean(1, keepdim=True)
    return ((grad - normed * along) * scales[:, None]).to(x.dtype), dweight


torch.library.define(
    "stepladder::rms_norm", "(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)"
)
torch.library.define(
    "stepladder::rms_norm_backward",
    "(Tensor dy, Tensor x, Tensor weight, Tensor scales) -> (Tensor, Tensor)",
)
torch.library.impl("stepladder::rms_norm", ("cpu", "cuda"), _forward)
torch.library.impl("stepladder::rms_norm_backward", ("cpu", "cuda"), _backward)


@torch.library.register_fake("stepladder::rms_norm")
def _fake_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    num_rows = x.numel() // x.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return y, torch.empty(num_rows, dtype=accumulator(x), device=x.device)


@torch.library.register_fake("stepladder::rms_norm_backward")
def _fake_backward(dy: Tensor, x: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return dx, torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
