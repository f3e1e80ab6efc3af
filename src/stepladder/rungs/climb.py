"""The whole ladder in order, on one screen.

Each rung changes the module in place at build time; the module keeps its class and its parameter
names. The order is not free: each line says why it stands before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from stepladder.kernels import choose
from stepladder.loss import Loss
from stepladder.model import Anatomy, find_anatomy, set_attention
from stepladder.plan import SettledPlan
from stepladder.rungs.context.context_parallel import Sequences, context
from stepladder.rungs.data_parallel.broadcast_parameters import fill, is_hollow, start_alike
from stepladder.rungs.data_parallel.distribute import home, spread
from stepladder.rungs.data_parallel.optimizer_shards import updates
from stepladder.rungs.memory.offload_activations import offload_activations
from stepladder.rungs.memory.recompute import recompute, whole_again
from stepladder.rungs.memory.recompute_budget import BlockCost
from stepladder.rungs.pipeline.find_stages import find_stages
from stepladder.rungs.pipeline.split_module import Line, split
from stepladder.rungs.precision.precision import (
    precision,
    read_inputs,
    sum_in_full,
    working,
)
from stepladder.rungs.tensor.tensor_parallel import tensor
from stepladder.world import World
from stepladder.world.single_rank_mesh import with_mesh

from .accumulate import Accumulate
from .cuda_graph import Recorded
from .parameter_shards import Piece


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
    notes: list[str] = field(default_factory=list)  # what rungs found out as they ran


def climb(
    module: nn.Module,
    settled: SettledPlan,
    loss: Loss,
    world: World,
    costs: Sequence[BlockCost] | None = None,
    seed: int = 0,
    inputs: Any = None,
) -> Climbed:
    """Apply every rung the plan names; a module without values gets its first ones from `seed`.

    Args:
        inputs: of one row, by which a pipeline's stages are weighed; tokens need none.
    """
    plan = settled.plan
    if settled.offloads_parameters:
        world = with_mesh(world)  # the engine that fetches them wants one, even of one rank
    held = take_share(module, settled, loss, world, costs, seed, inputs)
    blocks, line = held.blocks, held.line
    # After the move: memory layouts are the device's. Before compilation, which must see them.
    modules = [block for _, block in blocks]
    chosen = choose(module, held.anatomy, modules, loss, settled)
    # Before compilation: the compiler must see which activations it may drop.
    recomputed = (
        recompute(blocks, plan.recompute, costs=held.costs) if plan.recompute.kind != "none" else ()
    )
    # Last: it fuses whatever the rungs below left.
    chosen.compile()
    # Around everything: what is exchanged between ranks is what the rungs below made of it.
    line_up = line.run if line else partial(one_stage, module, blocks)
    run = line_up(
        settled,
        world,
        loss=held.sequences.loss if held.sequences else chosen.loss,
        working=chosen.around(forward_context(module, settled, world)),
        intake=chosen.reading(partial(read_inputs, plan.precision)),
        micro=settled.micro_batch,
    )
    if held.hollow:  # after slicing: no rank ever holds the whole
        fill(module, home(settled, world), seed)
    if held.sequences:
        run.share = partial(held.sequences.share, run)
    pieces, publish = updates(module, settled, world)
    pieces = line.shared.rename(pieces) if line else pieces
    again = recomputed, whole_again(blocks)
    return Climbed(
        module,
        held.anatomy,
        run,
        pieces,
        publish,
        *again,
        chosen.notes if world.is_rank_zero else [],
    )


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank has of a module once its share is cut out."""

    anatomy: Anatomy
    blocks: Sequence[tuple[str, nn.Module]]
    costs: Sequence[BlockCost] | None  # of these blocks
    line: Line | None  # its stages, in a pipeline
    sequences: Sequences | None  # how a batch's sequences are cut, where they are
    hollow: bool  # its parameters have no values yet


def take_share(
    module: nn.Module,
    settled: SettledPlan,
    loss: Loss,
    world: World,
    costs: Sequence[BlockCost] | None,
    seed: int,
    inputs: Any,
) -> Held:
    """The lower half of the ladder: what is computed in which type, and which part of it here."""
    plan = settled.plan
    anatomy = find_anatomy(module)
    blocks = anatomy.blocks_of(module) if anatomy.blocks else []

    # Before anything else: what a stage costs is counted on the module as it was given.
    piped = plan.layout.pipeline > 1
    stages = find_stages(module, anatomy, settled, world, inputs) if piped else None
    # Before anything cuts or slices: a slice must be of the same model on every rank.
    start_alike(module, world)
    # First: what a block computes is settled before anything wraps the block.
    if plan.attention != "auto":
        set_attention(module, plan.attention)
    # Before recomputation: what runs again in backward must look across ranks again.
    sequences = context(module, blocks, loss, plan, world) if plan.layout.context > 1 else None
    # Before the move: casting on the host needs no device memory for the wider copy.
    precision(module, plan.precision, plan.keep, world.device, kernels=plan.kernels)
    if settled.sums_gradients_in_float32:
        sum_in_full(module)
    # Before the move: no device ever holds another stage's parts.
    line = split(module, anatomy, stages, settled, world) if stages else None
    if line:
        blocks, costs = anatomy.blocks_of(module), line.costs(costs, settled)
    hollow, whole = is_hollow(module), not settled.sliced or plan.layout.tensor > 1
    if whole:  # else it moves as it is sliced: the whole may be larger than the device
        fill(module, world.device, seed) if hollow else module.to(world.device)
    # Before recomputation and compilation: they wrap a block with its cuts already in it.
    if plan.layout.tensor > 1:
        tensor(module, anatomy, world, whole_output=loss.kind != "cross_entropy")
    return Held(anatomy, blocks, costs, line, sequences, hollow and not whole)


def one_stage(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    settled: SettledPlan,
    world: World,
    **how: Any,
) -> Accumulate:
    passes = Recorded if settled.records_graphs else Accumulate
    return passes(spread(module, blocks, settled, world), world=world, **how)


def forward_context(
    module: nn.Module, settled: SettledPlan, world: World
) -> Callable[[], AbstractContextManager[Any]]:
    """What a forward pass runs in: the precision, and where its activations wait."""
    work = partial(working, settled.plan.precision, world.device)
    if not settled.offloads_activations:
        return work
    offload = offload_activations(world.device, module.parameters())

    @contextmanager
    def offloaded() -> Iterator[None]:
        with work(), offload:
            yield

    return offloaded
