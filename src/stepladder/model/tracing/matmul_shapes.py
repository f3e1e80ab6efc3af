"""The matmul that an operator does: matmuls, convolutions, recurrent layers, bilinear forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stepladder.seam.operators import Operators

from .matmul_counter import CONVOLUTIONS, MATMULS
from .operator_flops import RECURRENT, VECTOR_PRODUCTS, name_of, recurrent_weights

GROUPED = Operators(("aten._grouped_mm", "stepladder.grouped_loop"))


@dataclass(frozen=True, slots=True)
class RecordedMatmul:
    """A (rows, inner) activation by an (inner, columns) weight."""

    rows: int
    inner: int
    columns: int
    channels: int = 0  # of a convolution's window
    experts: int = 1  # matrices of a grouped matmul
    num_gradients: int = 2  # gradients that its operands require


def matmul_of(op: Any, args: Any, out: Tensor) -> RecordedMatmul | None:
    """The shape of an operator's matmul; None for one that does none."""
    packet, name = op.overloadpacket, name_of(op)
    if packet in MATMULS:
        return plain_matmul(*(args[index] for index in MATMULS[packet]), grouped=packet in GROUPED)
    if packet in CONVOLUTIONS:
        return convolution(args[0], args[1], args[0] if args[6] else out)
    if name in RECURRENT:
        return recurrent_layer(args)
    if name == "_trilinear":
        return bilinear_form(args, out)
    if name in VECTOR_PRODUCTS:
        return vector_product(*args[-2:])
    return None


def plain_matmul(first: Tensor, second: Tensor, *, grouped: bool = False) -> RecordedMatmul:
    rows = first.numel() // max(first.shape[-1], 1)
    return RecordedMatmul(
        rows, first.shape[-1], second.shape[-1],
        experts=second.shape[0] if grouped and second.dim() == 3 else 1,
        num_gradients=first.requires_grad + second.requires_grad,
    )  # fmt: skip


def vector_product(first: Tensor, second: Tensor) -> RecordedMatmul:
    gradients = first.requires_grad + second.requires_grad
    return RecordedMatmul(first.numel() // len(second), len(second), 1, num_gradients=gradients)


def convolution(images: Tensor, weight: Tensor, places: Tensor) -> RecordedMatmul:
    """A window of every place times the weight."""
    rows = places.shape[0] * places[0, 0].numel()
    return RecordedMatmul(
        rows, weight[0].numel(), weight.shape[0],
        channels=weight.shape[1],
        num_gradients=images.requires_grad + weight.requires_grad,
    )  # fmt: skip


def recurrent_layer(args: Any) -> RecordedMatmul:
    """Inputs and hidden states beside each other, times the weights of all gates."""
    weights = recurrent_weights(args)
    gates = weights[0].shape[0]
    rows = args[0].numel() // args[0].shape[-1]
    return RecordedMatmul(rows, sum(weight.numel() for weight in weights) // gates, gates)


def bilinear_form(args: Any, out: Tensor) -> RecordedMatmul:
    """The outer product of both inputs times the weight, which stands between them."""
    weight = args[1]
    rows = out.numel() // weight.shape[0]
    gradients = sum(tensor.requires_grad for tensor in args[:3])
    return RecordedMatmul(rows, weight[0].numel(), weight.shape[0], num_gradients=gradients)
