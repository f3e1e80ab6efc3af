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

Advice follows by rule. Gradients that underflow ask for a loss scale, or for fp32 where no scale
fits both ends of a layer; updates that are lost ask for fp32 weights, or for a larger rate of that
layer. A layer that the plan keeps in fp32 needs none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import floor, log2
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.model import find_anatomy
from stepladder.model.anatomy.hidden_matrices import MatrixShape
from stepladder.plan import Optimizer, Precision
from stepladder.train.optimizer.build_optimizer import settings
from stepladder.train.optimizer.muon.make_muon import choose_matrices
from stepladder.train.optimizer.muon.muon import SAME_SIZE

UNDERFLOW = 2.0**-25  # ties go to even, and zero is even
LEAST = 2.0**-133  # of bf16: the distance between its numbers around zero
SUBNORMAL = 2.0**-14
LARGEST = 65504.0
TOLERATED = 0.001  # share of gradients whose loss to underflow is not worth a word
# Share of updates rounded away from which a layer is reported: a norm whose gains stay at 1 while
# its biases learn has half.
LOST_TO_ROUNDING = 0.5


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
    lost_bf16: float | None  # None where no optimizer was given, as the next
    raise_bf16: float | None  # power of two times its rate that loses under LOST_TO_ROUNDING
    scale_fp16: float | None  # least power of two that saves all but TOLERATED; None if none does


class Trained(NamedTuple):
    """A parameter, its gradient and its learning rate."""

    weight: Tensor
    gradient: Tensor
    rate: float


@torch.no_grad()
def measure_gradients(
    module: nn.Module, optimizer: Optimizer | None = None, *, scale: float = 1.0
) -> tuple[LayerGradient, ...]:
    """Measure every layer that has gradients. Where they are sliced, all ranks must call.

    Args:
        optimizer: whose updates are compared with the weights' bf16 steps.
        scale: of the loss that the gradients came from.
    """
    return tuple(_measure(name, own, optimizer) for name, own in _layers(module, optimizer, scale))


def advise(
    rows: Sequence[LayerGradient], precision: Precision, *, keep: Collection[str] = ()
) -> list[str]:
    """What these gradients say about training in a precision, worst first; nothing if fine.

    Args:
        keep: modules that the plan keeps in fp32.
    """
    found = [
        said
        for row in rows
        for said in (*_broken(row), *([] if _kept(row.name, keep) else _narrow(row, precision)))
    ]
    return [sentence for _, sentence in sorted(found, key=lambda said: -said[0])]


def _kept(name: str, keep: Collection[str]) -> bool:
    """Whether a layer is one of these modules, or inside one; an end of a name is enough."""
    return any(f".{word}." in f".{name}." for word in keep)


def _layers(
    module: nn.Module, optimizer: Optimizer | None, scale: float
) -> Iterator[tuple[str, list[Trained]]]:
    blocks = find_anatomy(module).blocks
    is_muon = optimizer is not None and optimizer.name == "muon"
    shapes = choose_matrices(optimizer, module).shapes if optimizer and is_muon else {}
    for name, part in module.named_modules():
        own = []
        for word, parameter in part.named_parameters(recurse=False):
            if parameter.grad is not None and parameter.numel():
                full = f"{name}.{word}".lstrip(".")
                rate = settings(optimizer, full, blocks)[0] if optimizer else 0.0
                rate *= element_step(optimizer, shapes.get(full)) if optimizer else 0.0
                gradient = _whole(parameter.grad).float() / scale
                own.append(Trained(_whole(parameter), gradient, rate))
        if own:
            yield name or type(module).__name__, own


def element_step(optimizer: Optimizer, matrix: MatrixShape | None) -> float:
    """About how far one number goes in a step of an optimizer that divides by gradients' sizes."""
    if optimizer.name != "muon":
        return optimizer.lr
    if matrix is None:
        return optimizer.adamw_lr
    if optimizer.adjust == "match_rms_adamw":
        return SAME_SIZE * optimizer.lr
    stretched = max(1.0, matrix.rows / matrix.columns)
    return optimizer.lr * (stretched / max(matrix.rows, matrix.columns)) ** 0.5


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _measure(name: str, own: list[Trained], optimizer: Optimizer | None) -> LayerGradient:
    gradient = torch.cat([each.gradient.flatten() for each in own])
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
    lost, larger = (None, None) if optimizer is None else _lost_updates(own, optimizer)
    return LayerGradient(
        name=name,
        norm=norm,
        largest=largest,
        smallest_nonzero=smallest if largest else None,
        zero_share=zero,
        nonfinite_share=nonfinite,
        underflow_fp16=underflow,
        subnormal_fp16=subnormal,
        lost_bf16=lost,
        raise_bf16=larger,
        scale_fp16=_saving_scale(size[present], len(gradient), largest),
    )


def _lost_updates(own: list[Trained], optimizer: Optimizer) -> tuple[float, float]:
    """Share of updates that leave a bf16 weight where it was, and the rate's factor against it."""
    weight = torch.cat([each.weight.flatten() for each in own]).bfloat16()
    by_size = optimizer.name == "sgd"
    step = torch.cat([
        each.rate * (each.gradient if by_size else each.gradient.sign()).flatten() for each in own
    ])  # fmt: skip
    taken = (step != 0) & step.isfinite() & weight.isfinite()
    weight, step = weight[taken], step[taken].double()
    if not len(step):
        return 0.0, 1.0
    lost = (weight.float() - step.float()).bfloat16() == weight
    # Half of the distance to the next bf16 number, which has 8 significant bits.
    half = torch.exp2(torch.floor(torch.log2(weight.double().abs())) - 8).clamp(min=LEAST / 2)
    # To be exceeded by more than half of them: a tie may go to where it was.
    needed = (half / step.abs()).kthvalue(len(step) // 2 + 1).values.item()
    return lost.float().mean().item(), 2.0 ** max(floor(log2(needed)) + 1, 0) if needed else 1.0


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


def _broken(row: LayerGradient) -> Iterator[tuple[float, str]]:
    """What is wrong in any precision; each with how bad it is, as a share of the gradients."""
    if row.nonfinite_share:
        yield 2.0, f"{row.name}: {_percent(row.nonfinite_share)} of gradients are not finite."
    if row.zero_share == 1:
        yield 1.5, f"{row.name}: all gradients are zero; nothing of it is learned."


def _narrow(row: LayerGradient, precision: Precision) -> Iterator[tuple[float, str]]:
    """What a number format of few bits loses."""
    if precision.work == "float16" and row.underflow_fp16 > TOLERATED:
        yield row.underflow_fp16, _underflow(row)
    stored = precision.store == "bfloat16" and not precision.masters
    if stored and row.lost_bf16 is not None and row.lost_bf16 >= LOST_TO_ROUNDING:
        yield (
            row.lost_bf16,
            f"{row.name}: {_percent(row.lost_bf16)} of updates are under half a bf16 step of "
            "their weight and are rounded away; keep its weights in float32 "
            f"(keep=fp32:{row.name}, or bf16 for all), or raise its rate "
            f"(group={row.name}.*:lr=x{row.raise_bf16:g}).",
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
