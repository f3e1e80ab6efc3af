"""Rung: what faster kernels need changed around a pass, each only where it is known to win.

They are for a world of one: sliced parameters and gathered blocks have engines of their own, and
no combination is made that was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from stepladder.loss import Loss
from stepladder.model import Anatomy
from stepladder.world import World

from .channels_last import channels_innermost, read_images
from .folded_convolution import fold_stems
from .fused_head import FusedHead, fuse_head

Context = Callable[[], AbstractContextManager[Any]]
Intake = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Fused:
    """What was changed; nothing where nothing would win."""

    plain: Loss
    head: FusedHead | None = None
    images: bool = False  # stored with their channels innermost
    notes: list[str] = field(default_factory=list)  # what a user should know of it

    @property
    def loss(self) -> Loss:
        return self.plain if self.head is None else self.head.loss

    def around(self, working: Context) -> Context:
        """The block a forward pass runs in."""
        if self.head is None:
            return working
        head = self.head

        @contextmanager
        def both() -> Iterator[None]:
            with working(), head.passing():
                yield

        return both

    def reading(self, intake: Intake) -> Intake:
        """Inputs as the changed module reads them."""
        if self.head is not None:
            prepare = self.head.intake
            return lambda inputs: prepare(intake(inputs))
        return (lambda inputs: read_images(intake(inputs))) if self.images else intake


def fuse(
    module: nn.Module,
    anatomy: Anatomy,
    loss: Loss,
    world: World,
    wanted: bool,
    *,
    eight: bool = False,
) -> Fused:
    """Change what wins on this rank's device, where it is wanted and the rank is alone.

    Args:
        eight: the plan multiplies in 8 bits.
    """
    if not wanted or world.layout.num_ranks > 1:
        return Fused(loss)
    images = world.device.type == "cuda" and channels_innermost(module)
    head = fuse_head(module, anatomy, loss, eight=eight)
    notes = head.notes if head else []
    if images:
        how = "takes images folded two by two where it multiplies in 16 bits"
        notes += [f"kernels: {name} {how}" for name in fold_stems(module)]
    return Fused(loss, head, images, notes)
