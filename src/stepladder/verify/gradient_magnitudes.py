"""Gradients layer by layer: how large they are, and which of them a number format would lose.

Measured after a backward pass. Gradients of a scaled loss are divided by its scale first: what
fp16 would lose without loss scaling is counted on what the scale has kept.

Three losses are counted, each as a share of a layer's gradients:

- *underflow* in fp16: not zero, and at most 2^-25, half its least number, so it rounds to zero;
- *subnormal* in fp16: kept, but under 2^-14 with fewer than 11 significant bits;
- *lost* in bf16: an update that leaves its bf16 weight where it was: lr · gradient for SGD, lr for
  Adam, whose first update has that size whatever the gradient. That is the one that matters for
  bf16: its range is float32's and its gradients do not vanish, but its weights have 8 significant
  bits, and an update under 1/512 of a weight is rounded away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.plan import Optimizer, Precision

UNDERFLOW = 2.0**-25  # ties go to even, and zero is even
SUBNORMAL = 2.0**-14
LARGEST = 65504.0
TOLERATED = 0.001  # share of gradients whose loss to underflow is not worth a word
LOST_TO_ROUNDING = 0.5  # share of steps rounded away beyond which a layer hardly learns


@dataclass(frozen=True, slots=True)
class LayerGradient:
    """One module's own parameters, weight and bias together."""

    name: str
    norm: float
    largest: float  # of the finite ones, as the next
    smallest_nonzero: float | None  # None if all are zero
    zero_share: float
    nonfinite_share: float
    underflow_fp16: float
    subnormal_fp16: float
    lost_bf16: float | None  # None where no optimizer was given
    scale_fp16: float | None  # least power of two that saves all but TOLERATED; None if none does


@torch.no_grad()
def measure_gradients(
    module: nn.Module, optimizer: Optimizer | None = None, *, scale: float = 1.0
) -> tuple[LayerGradient, ...]:
    """Measure every layer that has gradients. Where they are sliced, all ranks must call.

    Args:
        optimizer: whose updates are compared with the weights' bf16 steps.
        scale: of the loss that the gradients came from.
    """
    return tuple(_measure(name, pairs, optimizer) for name, pairs in _layers(module, scale))


def advise(rows: Sequence[LayerGradient], precision: Precision) -> list[str]:
    """What these gradients say about training in a precision, worst first; nothing if fine."""
    found = [said for row in rows for said in _sentences(row, precision)]
    return [sentence for _, sentence in sorted(found, key=lambda said: -said[0])]


def _layers(module: nn.Module, scale: float) -> Iterator[tuple[str, list[tuple[Tensor, Tensor]]]]:
    for name, part in module.named_modules():
        own = [p for p in part.parameters(recurse=False) if p.grad is not None and p.numel()]
        if own:
            pairs = [(_whole(p), _whole(p.grad).float() / scale) for p in own]
            yield name or type(module).__name__, pairs


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _measure(
    name: str, pairs: list[tuple[Tensor, Tensor]], optimizer: Optimizer | None
) -> LayerGradient:
    gradient = torch.cat([g.flatten() for _, g in pairs])
    finite = gradient.isfinite()
    size = torch.where(finite, gradient, 0).abs()
    present = size > 0
    numbers = (
        gradient.norm(),
        size.max(),
        torch.where(present, size, torch.inf).min(),
        (finite & ~present).float().mean(),
        (~finite).float().mean(),
        (present & (size <= UNDERFLOW)).float().mean(),
        ((size > UNDERFLOW) & (size < SUBNORMAL)).float().mean(),
    )
    norm, largest, smallest, zero, nonfinite, underflow, subnormal = torch.stack(numbers).tolist()
    return LayerGradient(
        name=name,
        norm=norm,
        largest=largest,
        smallest_nonzero=smallest if largest else None,
        zero_share=zero,
        nonfinite_share=nonfinite,
        underflow_fp16=underflow,
        subnormal_fp16=subnormal,
        lost_bf16=None if optimizer is None else _lost_share(pairs, optimizer),
        scale_fp16=_saving_scale(size[present], len(gradient), largest),
    )


def _lost_share(pairs: list[tuple[Tensor, Tensor]], optimizer: Optimizer) -> float:
    """Share of updates, among those that are not zero, that leave a bf16 weight where it was."""
    weight = torch.cat([w.flatten() for w, _ in pairs]).bfloat16()
    gradient = torch.cat([g.flatten() for _, g in pairs])
    step = optimizer.lr * (gradient if optimizer.name == "sgd" else gradient.sign())
    moved = (weight.float() - step).bfloat16() != weight
    taken = step != 0
    return ((taken & ~moved).sum() / taken.sum().clamp(min=1)).item()


def _saving_scale(size: Tensor, count: int, largest: float) -> float | None:
    """The least power of two that lifts all but a tolerated share above underflow, if it fits."""
    spare = int(TOLERATED * count)
    if len(size) <= spare:
        return 1.0
    rarest = size.kthvalue(spare + 1).values.item()  # the smallest that must survive
    exponent = 0
    while rarest * 2.0**exponent <= UNDERFLOW:
        exponent += 1
    return 2.0**exponent if largest * 2.0**exponent <= LARGEST else None


def _sentences(row: LayerGradient, precision: Precision) -> Iterator[tuple[float, str]]:
    """Each with how bad it is, as a share of the layer's gradients."""
    if row.nonfinite_share:
        yield 2.0, f"{row.name}: {_percent(row.nonfinite_share)} of gradients are not finite."
    if row.zero_share == 1:
        yield 1.5, f"{row.name}: all gradients are zero; nothing of it is learned."
    if precision.work == "float16" and row.underflow_fp16 > TOLERATED:
        yield row.underflow_fp16, _underflow(row)
    if precision.store == "bfloat16" and (row.lost_bf16 or 0) > LOST_TO_ROUNDING:
        yield (
            row.lost_bf16 or 0,
            f"{row.name}: {_percent(row.lost_bf16 or 0)} of updates are under half a bf16 step of "
            "their weight and are rounded away; keep its weights in float32 "
            f"(keep=fp32:{row.name}, or bf16 for all), or raise its rate "
            f"(group={row.name}.*:lr=x10).",
        )


def _underflow(row: LayerGradient) -> str:
    said = f"{row.name}: {_percent(row.underflow_fp16)} of gradients would underflow in fp16"
    if row.scale_fp16 is None:
        return (
            f"{said}, and a loss scale that saves them overflows others; "
            f"use bf16, or keep=fp32:{row.name}."
        )
    power = int(row.scale_fp16).bit_length() - 1
    return f"{said} at scale 1; a loss scale of 2^{power} keeps them, or use bf16."


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"
