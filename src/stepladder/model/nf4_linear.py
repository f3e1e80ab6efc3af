"""Frozen linears in 4 bits (NF4: Dettmers and others 2023), made whole as they are used.

A weight is cut into blocks of 64 numbers along its rows. Each is divided by its largest magnitude,
which is kept in float32, and rounded to one of 16 numbers: the quantiles of a normal distribution,
so that each serves as many weights. Backward makes the weight whole again, so nothing but the bytes
is held in between. They are bytes to everybody else: casts leave them alone, and ZeRO 3 slices them
by rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .autocast_type import autocast_type
from .frozen_linears import frozen_linears

BLOCK = 64  # weights with one scale
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
KEPT: dict[torch.device, Tensor] = {}  # the levels on each device that has codes


class NF4Linear(nn.Module):
    """A frozen linear whose weight takes 4.5 bits a number."""

    codes: nn.Parameter
    scales: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.out_features, linear.in_features
        codes, scales = quantise(linear.weight.detach())
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias

    def forward(self, given: Tensor) -> Tensor:
        dtype = autocast_type(given.device) or given.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return WholeProduct.apply(given.to(dtype), self.codes, self.scales, bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, nf4"


class WholeProduct(torch.autograd.Function):
    """given @ weight.T + bias, with the weight made whole in each direction."""

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(codes, scales)
        return functional.linear(given, dequantise(codes, scales, given.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        codes, scales = ctx.saved_tensors
        (gradient,) = gradients
        return gradient @ dequantise(codes, scales, gradient.dtype), None, None, None


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix's codes, two a byte, and the bytes of its scales: a row of each for each row."""
    rows = weight.float()
    blocks = rows.reshape(len(rows), -1, BLOCK)
    scales = blocks.abs().amax(-1)
    levels = torch.tensor(LEVELS, device=weight.device)
    middles = (levels[1:] + levels[:-1]) / 2
    scaled = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    codes = torch.bucketize(scaled, middles).to(torch.uint8).reshape(len(rows), -1)
    return codes[:, ::2] * 16 + codes[:, 1::2], scales.view(torch.uint8)


def dequantise(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix of these codes; codes that were cast on the way are the same whole numbers."""
    codes, scales = codes.to(torch.uint8), scales.to(torch.uint8).contiguous()
    levels = levels_for(codes)
    pairs = torch.stack([codes >> 4, codes & 15], -1)
    blocks = levels[pairs.int()].reshape(len(codes), -1, BLOCK)
    return (blocks * scales.view(torch.float32)[..., None]).reshape(len(codes), -1).to(dtype)


def levels_for(codes: Tensor) -> Tensor:
    """The levels beside these codes, copied there once: a recorded step takes no host memory."""
    if torch.compiler.is_compiling() or type(codes) not in (Tensor, nn.Parameter):
        return torch.tensor(LEVELS, device=codes.device)
    if codes.device not in KEPT:
        KEPT[codes.device] = torch.tensor(LEVELS, device=codes.device)
    return KEPT[codes.device]


def quantise_frozen_linears(module: nn.Module, skip: nn.Module | None = None) -> int:
    """Put every frozen linear but one into 4 bits; the number of linears.

    One whose rows are not whole blocks stays as it is.
    """
    frozen = {name.rpartition(".")[0] for name in frozen_linears(module) if name[-7:] == ".weight"}
    made = 0
    for name in sorted(frozen):
        linear = module.get_submodule(name)
        if type(linear) is nn.Linear and linear is not skip and not linear.in_features % BLOCK:
            above, _, word = name.rpartition(".")
            setattr(module.get_submodule(above), word, NF4Linear(linear))
            made += 1
    return made
