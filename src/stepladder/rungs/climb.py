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
from .context import context
from .exchange import Exchange
from .loss import Loss
from .offload import offload_activations
from .pieces import Piece, make_pieces
from .precision import check_precision, precision, read_inputs, working
from .recompute import recompute, whole_again
from .replicate import replicate
from .shard import shard
from .sliced import send_slices, slice_pieces


@dataclass(frozen=True, slots=True)
class Climbed:
    """A module that has been taken up the ladder."""

    module: nn.Module  # as the user gave it, changed in place: what is saved
    anatomy: Anatomy
    forward_backward: Accumulate  # how a batch becomes gradients
    pieces: tuple[Piece, ...]  # what this rank's optimizer updates; shared parameters once
    publish: Callable[[], None]  # tell other ranks what the optimizer changed
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
    # Before recomputation: what runs again in backward must look across ranks again.
    sequences = context(module, blocks, loss, plan, world) if plan.layout.context > 1 else None
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

    # Around everything: what is exchanged between ranks is what the rungs below made of it.
    exchange = spread(module, blocks, plan, world)
    run = Accumulate(
        exchange,
        sequences.loss if sequences else loss,
        working=forward_context(module, plan, world),
        world=world,
        intake=partial(read_inputs, plan.precision),
        micro=plan.batch.micro,
    )
    if sequences:
        run.share = partial(sequences.share, run)
    pieces, publish = make_pieces(module.named_parameters()), nothing
    if plan.zero == 1 and world.mesh is not None:
        pieces = slice_pieces(pieces, world)
        publish = partial(send_slices, pieces, world)
    return Climbed(module, anatomy, run, pieces, publish, recomputed, whole_again(blocks))


def nothing() -> None:
    """A world of one has nobody to tell."""


def spread(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], plan: Plan, world: World
) -> Exchange:
    """The module among the ranks that learn from other samples."""
    if world.mesh is None or world.layout.num_ranks == 1:
        return Exchange(module)
    if plan.zero >= 2:
        return shard(module, blocks, plan, world)
    return replicate(module, plan, world)


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
    for axis in ("pipeline", "tensor"):
        ways = getattr(plan.layout, axis)
        if ways > 1:
            found.append(
                PlanError(
                    f"layout.{axis}",
                    f"{ways} ways can be forecast and not run in this version",
                    "Leave the axis out, and use shard instead.",
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
