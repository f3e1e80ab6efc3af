"""The whole ladder in order, on one screen.

Each rung changes the module in place at build time; the module keeps its class and its parameter
names. The order is not free: each line says why it stands before the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from stepladder.errors import raise_all
from stepladder.model import Anatomy, find_anatomy, set_attention
from stepladder.plan import Plan
from stepladder.world import World

from .accumulate import Accumulate
from .budget import BlockCost
from .compile import compile_module
from .loss import Loss
from .precision import check_precision, precision, read_inputs, working
from .recompute import recompute


@dataclass(frozen=True, slots=True)
class Climbed:
    """A module that has been taken up the ladder."""

    module: nn.Module  # as the user gave it, changed in place: what is saved
    anatomy: Anatomy
    forward_backward: Accumulate  # how a batch becomes gradients
    recomputed: tuple[str, ...] = ()  # blocks whose activations are not kept

    @property
    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters that learn, with their names; shared ones once."""
        return [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]


def climb(
    module: nn.Module,
    plan: Plan,
    loss: Loss,
    world: World,
    costs: Sequence[BlockCost] | None = None,
) -> Climbed:
    """Apply every rung the plan names."""
    raise_all(check_precision(plan.precision, world.device))
    anatomy = find_anatomy(module)
    blocks = anatomy.blocks_of(module) if anatomy.blocks else []

    # First: what a block computes is settled before anything wraps the block.
    if plan.attention != "auto":
        set_attention(module, plan.attention)
    # Before the move: casting on the host needs no device memory for the wider copy.
    precision(module, plan.precision, plan.keep, world.device)
    module.to(world.device)
    # Before compilation: the compiler must see which activations it may drop.
    recomputed = (
        recompute(blocks, plan.recompute, costs=costs) if plan.recompute.kind != "none" else ()
    )
    # Last: it fuses whatever the rungs below left.
    if plan.compile:
        compile_module(module, blocks)

    run = Accumulate(
        module,
        loss,
        working=partial(working, plan.precision, world.device),
        world=world,
        intake=partial(read_inputs, plan.precision),
        micro=plan.batch.micro,
    )
    return Climbed(module, anatomy, run, recomputed)
