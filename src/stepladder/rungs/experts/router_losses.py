"""The losses of a mixture's router, counted over the global batch.

The load-balancing loss is a product of two sums over all tokens, so the mean of what micro-batches
or ranks have is another number, which punishes a rank's own unevenness too. With one micro-batch,
ranks add up their counts inside the forward pass. With several, the first must know what the last
will choose: a pass without gradients counts it, which costs as much as a forward pass. Leaving the
coefficient out (balance=0) saves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import PlanError
from stepladder.model.builtin.mixture import Mixture, mixtures_of
from stepladder.model.forward_state import state_restored
from stepladder.plan.layout import COPIES
from stepladder.seam.operators import all_gather, look_up_collectives
from stepladder.world import World

if TYPE_CHECKING:
    from stepladder.rungs.accumulate import Accumulate, Scale


@dataclass(slots=True)
class RouterLosses:
    """The mixtures of this rank's part of a module, and what they need to know of a batch."""

    mixtures: list[Mixture]
    world: World
    factor: Tensor  # of all mixtures: how a step scales what ranks average
    whole: Tensor  # (mixtures, experts), of which each mixture has a row
    idle: Tensor  # zero

    @classmethod
    def of(cls, module: nn.Module, world: World) -> RouterLosses | None:
        """For the mixtures of a module that have such losses; None where there are none."""
        refuse_cut_capacity(module, world)
        found = [part for _, part in mixtures_of(module) if part.balance or part.z]
        if not found:
            return None
        device = world.device
        made = cls(
            found,
            world,
            torch.ones((), device=device),
            torch.zeros(len(found), found[0].num_experts, device=device),
            torch.zeros((), device=device),
        )
        for row, part in zip(made.whole, found):
            part.factor, part.whole = made.factor, row
            if made.ranks > 1:
                look_up_collectives()
                part.sum_counts = made.sum_over_ranks
        return made

    @property
    def ranks(self) -> int:
        return 1 if self.world.mesh is None else self.world.group(*COPIES).size()

    def sum_over_ranks(self, counts: Tensor) -> Tensor:
        name = self.world.group(*COPIES).group_name
        return all_gather(counts, self.ranks, name).view(self.ranks, -1).sum(0)

    @contextmanager
    def batch(self, micro_batches: int) -> Iterator[None]:
        """As running statistics have it: the context of a batch."""
        yield

    @contextmanager
    def micro_batch(self, rows: int) -> Iterator[None]:
        """A micro-batch of no rows repeats another, and its losses do not count."""
        if rows:
            yield
            return
        known = self.factor.clone()
        self.factor.zero_()
        yield
        self.factor.copy_(known)

    def prepare(self, run: Accumulate, module: nn.Module, batch: Batch, scale: Scale) -> None:
        """Before a batch: how its loss is scaled, and what its micro-batches will choose."""
        ways = torch.full((), float(run.gradient_sync.ways), device=self.world.device)
        self.factor.copy_(scale(ways))
        cut = self.is_cut(run, batch)
        if cut:
            self.count(run, module, batch)
        for part in self.mixtures:
            part.cut = cut

    def is_cut(self, run: Accumulate, batch: Batch) -> bool:
        """Whether any rank takes the batch in several micro-batches."""
        most = batch.rows_of_fullest(self.world.layout.data_ranks)
        return run.micro is not None and run.micro < most

    def count(self, run: Accumulate, module: nn.Module, batch: Batch) -> None:
        """Fill in `whole` by a pass that leaves no trace."""
        device = self.world.device
        real = 0 if batch.idle else len(run.micro_batches(batch))
        padded = len(run.padded_micro_batches(batch, batch))
        seen: dict[Mixture, list[Tensor]] = {part: [] for part in self.mixtures}

        def watch(part: Mixture, counts: Tensor, dropped: Tensor) -> None:
            seen[part].append(counts)

        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.compiler.set_stance("force_eager"),
            state_restored(module),
        ):
            for part in self.mixtures:
                part.watch = watch
            run.evaluate(batch)
        # A pipeline may have tried a micro-batch first; a rank's last ones may be repeated.
        found = [sum(counts[-padded:][:real], self.idle) for counts in seen.values()]
        mine = torch.stack([one.expand(self.whole.shape[1]) for one in found])
        self.whole.copy_(self.world.sum(mine.contiguous(), *COPIES))


def refuse_cut_capacity(module: nn.Module, world: World) -> None:
    """A capacity is of a sequence: a rank with a part of it does not know what came before."""
    ways = world.layout.context
    for name, part in mixtures_of(module):
        if part.capacity and ways > 1:
            problem = (
                f"'{name}' counts its capacity in whole sequences, and context={ways} cuts them"
            )
            raise PlanError("layout.context", problem, "Build the model with capacity=0.")
