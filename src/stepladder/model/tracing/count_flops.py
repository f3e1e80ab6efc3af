"""Counting the FLOPs of a module on given inputs, with fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stepladder.model.anatomy.find_anatomy import find_anatomy

from .fake_tensors import FakeForward, Inputs, running_parts
from .matmul_counter import FlopCounter, FusedAttentionCounter, MatmulCounter


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating point operations of one forward and backward; a multiply-add is two."""

    forward: int
    backward: int
    attention: int  # of forward: the matmuls QKᵀ and PV, without the projections
    recompute: int = 0  # forward work repeated by activation checkpointing
    parts: Mapping[str, int] = field(default_factory=dict, hash=False)  # forward, by anatomy's name
    elementwise: int = 0  # of forward: norms, activations, sums; by convention no part of MFU
    uncounted: tuple[str, ...] = ()  # operators that nobody can count: the totals lack them

    @property
    def model(self) -> int:
        """FLOPs without recomputation: the numerator of MFU."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """FLOPs with recomputation: the numerator of HFU."""
        return self.model + self.recompute


def count_flops(
    module: nn.Module,
    inputs: Inputs,
    *,
    targets: Any = None,
    loss: Callable[..., Any] | None = None,
    parts: Sequence[str] | None = None,
) -> Flops:
    """The FLOPs of one forward and backward pass on inputs like these.

    Args:
        inputs: one tensor, a tuple of arguments, or a mapping of named ones; on any device.
        loss: counted too if given, as loss(output, targets).
        parts: whose forward FLOPs are counted apart; by default the ends and the blocks.
    """
    fake_forward = FakeForward(module)
    names = parts_of(module) if parts is None else parts
    with running_parts(module, names) as inside, fake_forward.fake, torch.enable_grad():
        counter = FlopCounter(inside)
        with FusedAttentionCounter(counter), MatmulCounter(counter):
            output = fake_forward(inputs)
            if loss is not None:
                loss(output, fake_forward.to_fake(targets))
    return Flops(
        sum(counter.parts.values()),
        counter.backward,
        counter.attention,
        parts=counter.parts,
        elementwise=counter.elementwise,
        uncounted=tuple(sorted(counter.uncounted)),
    )


def parts_of(module: nn.Module) -> tuple[str, ...]:
    anatomy = find_anatomy(module)
    return (*anatomy.entry, *anatomy.blocks, *anatomy.exit)
