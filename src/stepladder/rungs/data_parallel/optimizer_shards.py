"""What this rank's optimizer updates, and how the others hear of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from stepladder.plan import SettledPlan
from stepladder.plan.layout import SLICES
from stepladder.rungs.memory.offload_optimizer import bring_up, move_to_host
from stepladder.rungs.parameter_shards import Piece, make_pieces
from stepladder.world import World

from .zero1 import send_slices, slice_pieces

Publish = Callable[[], None]


def updates(
    module: nn.Module, settled: SettledPlan, world: World
) -> tuple[tuple[Piece, ...], Publish]:
    """The pieces to update, and what to do after they were."""
    pieces = make_pieces(module.named_parameters())
    after: list[Publish] = []
    if settled.slices_optimizer_only:
        pieces = slice_pieces(pieces, world)
        after.append(partial(send_slices, pieces, world.group(*SLICES)))
    if settled.offloads_optimizer:
        on_host = move_to_host(pieces)
        pieces = on_host
        after.insert(0, partial(bring_up, on_host))  # a slice is sent once it is up

    def publish() -> None:
        for tell in after:
            tell()

    return pieces, publish
