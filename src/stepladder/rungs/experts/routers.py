"""What a step does about the routers of mixtures: their losses, and how evenly they use experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from stepladder.data import Batch
from stepladder.world import World

from .exchange import ExpertRanks
from .expert_load import ExpertLoad
from .router_losses import RouterLosses

if TYPE_CHECKING:
    from stepladder.rungs.accumulate import Accumulate, Scale


@dataclass(frozen=True, slots=True)
class Routers:
    """Of this rank's part of a module."""

    load: ExpertLoad
    losses: RouterLosses | None

    @classmethod
    def of(
        cls, module: nn.Module, world: World, ranks: ExpertRanks | None = None
    ) -> Routers | None:
        """None for a model without mixtures; a pipeline stage without one takes part.

        Args:
            ranks: those that the model's experts are spread over.
        """
        losses, load = RouterLosses.of(module, world), ExpertLoad.of(module, world, ranks)
        return None if load is None else cls(load, losses)

    def prepare(self, run: Accumulate, module: nn.Module, batch: Batch, scale: Scale) -> None:
        """Before a batch."""
        if self.losses:
            self.losses.prepare(run, module, batch, scale)
        self.load.start()

    def of_batch(self) -> Callable[[], Mapping[str, Any]]:
        """After a batch: what reads a report's numbers of experts. Every rank calls it."""
        return partial(self.load.numbers, self.load.of_batch(), self.load.sent_bytes)
