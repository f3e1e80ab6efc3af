"""A probe: one operation to time, and its random inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stepladder.plan import BF16, FP32, Precision
from stepladder.plan.precision import FP8, FP16, TF32

Work = Callable[[], object]
Shapes = dict[str, tuple[tuple[int, ...], ...]]  # by kind of device

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PRECISIONS = {p.compute: p for p in (BF16, FP16, TF32, FP32, FP8)}


@dataclass(frozen=True, slots=True)
class Probe:
    kind: str
    compute: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.compute} {'×'.join(map(str, self.shape))}".replace("  ", " ")


def backward_of(function: Callable[..., torch.Tensor], *leaves: torch.Tensor) -> Work:
    asked = [leaf.requires_grad_() for leaf in leaves]
    dout = torch.ones_like(function(*asked))
    return lambda: torch.autograd.grad(function(*asked), asked, dout)


def draw(shape: Sequence[int], probe: Probe, device: torch.device) -> torch.Tensor:
    """Random numbers: zeros would spare the chip the power that real ones cost."""
    precision: Precision = PRECISIONS[probe.compute]
    return torch.randn(tuple(shape), device=device, dtype=TYPES[precision.work])
