"""FLOPs of a module on given inputs, counted on stand-ins: no memory, no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stepladder.model.anatomy.find_anatomy import find_anatomy

from .fake_tensors import Inputs, Rehearsal, running
from .matmul_counter import FusedAttention, Products, Tally


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating point operations of one pass; a multiply and an add are two."""

    forward: int
    backward: int
    attention: int  # the part of forward that is scores and mixing, not projections
    recompute: int = 0  # forward work done again for the sake of memory
    parts: Mapping[str, int] = field(default_factory=dict, hash=False)  # forward, by anatomy's name

    @property
    def model(self) -> int:
        """What the mathematics needs: the numerator of model FLOPs utilization."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """What the device is asked to do."""
        return self.model + self.recompute


def count_flops(
    module: nn.Module,
    inputs: Inputs,
    *,
    targets: Any = None,
    loss: Callable[..., Any] | None = None,
) -> Flops:
    """The FLOPs of one forward and backward pass on inputs like these.

    Args:
        inputs: one tensor, a tuple of arguments, or a mapping of named ones; on any device.
        loss: counted too where given, as loss(output, targets).
    """
    anatomy = find_anatomy(module)
    rehearsal = Rehearsal(module)
    names = (*anatomy.entry, *anatomy.blocks, *anatomy.exit)
    with running(module, names) as inside, rehearsal.fake, torch.enable_grad():
        tally = Tally(inside)
        with FusedAttention(tally), Products(tally):
            output = rehearsal(inputs)
            if loss is not None:
                loss(output, rehearsal.stand_in(targets))
    return Flops(sum(tally.parts.values()), tally.backward, tally.attention, parts=tally.parts)
