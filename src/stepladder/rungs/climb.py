"""The whole ladder in order, on one screen.

Each rung changes the module in place at build time; the module keeps its class and its parameter
names. The order is not free: each line says why it stands before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from stepladder.errors import PlanError, raise_all
from stepladder.model import Anatomy, find_anatomy, set_attention
from stepladder.plan import Plan
from stepladder.world import World

from .accumulate import Accumulate
from .budget import BlockCost
from .compile import compile_module
from .loss import Loss
from .offload import offload_activations
from .precision import check_precision, precision, read_inputs, working
from .recompute import recompute, whole_again


@dataclass(frozen=True, slots=True)
class Climbed:
    """A module that has been taken up the ladder."""

    module: nn.Module  # as the user gave it, changed in place: what is saved
    anatomy: Anatomy
    forward_backward: Accumulate  # how a batch becomes gradients
    trainable: tuple[tuple[str, nn.Parameter], ...]  # with their names; shared ones once
    recomputed: tuple[str, ...] = ()  # blocks whose activations are not kept
    recomputed_whole: frozenset[str] = frozenset()  # of them, those whose products run again


def climb(
    module: nn.Module,
    plan: Plan,
    loss: Loss,
    world: World,
    costs: Sequence[BlockCost] | None = None,
) -> Climbed:
    """Apply every rung the plan names."""
    raise_all([*check_precision(plan.precision, world.device), *missing_rungs(plan)])
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
        working=forward_context(module, plan, world),
        world=world,
        intake=partial(read_inputs, plan.precision),
        micro=plan.batch.micro,
    )
    trainable = tuple((name, p) for name, p in module.named_parameters() if p.requires_grad)
    return Climbed(module, anatomy, run, trainable, recomputed, whole_again(blocks))


def forward_context(
    module: nn.Module, plan: Plan, world: World
) -> Callable[[], AbstractContextManager[Any]]:
    """What a forward pass runs in: the precision, and where its activations wait."""
    work = partial(working, plan.precision, world.device)
    if "activations" not in plan.offload:
        return work
    offload = offload_activations(world.device, module.parameters())

    @contextmanager
    def offloaded() -> Iterator[None]:
        with work(), offload:
            yield

    return offloaded


def missing_rungs(plan: Plan) -> list[PlanError]:
    """Words of a plan that this version can forecast and not yet run: refused, never ignored."""
    found = []
    if plan.layout.num_ranks > 1:
        found.append(
            PlanError(
                "layout",
                f"{plan.layout} has {plan.layout.num_ranks} ranks, and this version trains on one",
                "Leave the axes out; 'stepladder plan' forecasts them.",
            )
        )
    for word in plan.offload:
        if word != "activations":
            found.append(
                PlanError(
                    "offload",
                    f"{word} stay on the device in this version",
                    "Use offload=activations, or optimizer=adafactor for less state.",
                )
            )
    if plan.compress.kind != "none":
        found.append(
            PlanError(
                "compress", f"{plan.compress} has one rank and nothing to send", "Leave it out."
            )
        )
    return found
