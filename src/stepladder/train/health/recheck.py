"""A watch over silent corruption: one step in so many is taken twice, and the tries are compared.

A processor that computes wrongly now and then, a flipped bit in memory, a message that arrived
otherwise than it was sent: none of these raises an error. A step of an exact run gives the same
bits each time, so two tries of it that differ tell. Then it is taken a third time, and what two of
three agree on is gone on with; it has the bits that it would have had undisturbed.

[Note: who was wrong] Every rank leaves a print of each stage of a try, in the order in which one
follows from the other. A sum over ranks spreads one rank's mistake to all, so those ranks are named
that differ in the first stage in which any does.

Both tries start from the same state, so what was wrong before is wrong in both. Copies of the
parameters on other ranks tell, where there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.data import Batch
from stepladder.errors import WorldError
from stepladder.plan import SettledPlan
from stepladder.rungs import Climbed, LossScale, fingerprint
from stepladder.train.reporting.step_report import Applied
from stepladder.world import World

from .own_gradients import OwnGradients
from .replica_check import LAST, refuse_deviating
from .step_state import StateCopy, StepState, is_room_for

STAGES = (
    "what it began with",
    "parameters before the update",
    "loss",
    "gradients of its own rows",
    "gradients",
    "updated parameters",
    "optimizer state",
    "buffers",
    "loss scale",
)
BEGINNING, PARAMETERS = 0, 1
TEST = "test the memory, processor and network of that machine"

Prints = list[list[int]]  # of a try: by rank, and by stage


class Stepping(Protocol):
    """What takes steps, as far as a try of one needs it."""

    settled: SettledPlan
    world: World
    climbed: Climbed
    optimizer: torch.optim.Optimizer
    scale: LossScale
    index: int
    events: list[str]

    def gradients(self, batch: Batch) -> Tensor: ...
    def apply(self, loss: Tensor) -> Applied: ...


@dataclass(slots=True)
class Recheck:
    agreed: int | None = None  # the last step that was taken twice with the same result
    own: OwnGradients = field(default_factory=OwnGradients)

    def due(self, every: int, step: int) -> bool:
        """Whether a step is one of those that are taken twice, whenever the run was resumed."""
        return every > 0 and (step + 1) % every == 0

    def take(self, run: Stepping, batch: Batch) -> tuple[Tensor, Applied]:
        """Take a step until two tries agree, and leave the state as they do."""
        state = StepState(run.climbed, run.optimizer, run.scale, run.world.device, batch)
        limit = run.settled.plan.memory_bytes
        before = StateCopy(state, on_host=not is_room_for(state.num_bytes, run.world.device, limit))
        first, _ = self.attempt(run, batch, state)
        before.put_back()
        second, result = self.attempt(run, batch, state)
        tries = gather(torch.stack([first, second]), run.world)
        if tries[0] != tries[1]:
            before.put_back()
            third, result = self.attempt(run, batch, state)
            tries += gather(third.unsqueeze(0), run.world)
            run.events.append(f"step {run.index}: {self.judge(tries, run.index, state.moving)}")
        parameters = [prints[PARAMETERS] for prints in tries[-1]]
        held = run.climbed.module.parameters()
        refuse_deviating(parameters, held, run.world, run.index, self.checkpoint)
        self.agreed = run.index
        return result

    def attempt(
        self, run: Stepping, batch: Batch, state: StepState
    ) -> tuple[Tensor, tuple[Tensor, Applied]]:
        """Take the step once: a print of each stage, and what came of it."""
        device, several = run.world.device, run.world.layout.num_ranks > 1
        prints = [fingerprint(state.tensors)]
        if several:
            with self.own.watched(run.climbed, in_order=bool(run.settled.slices)) as own:
                loss = run.gradients(batch)
        else:
            loss, own = run.gradients(batch), []
        for shard in run.climbed.shards:
            shard.take_gradient()
        gradients = [s.gradient for s in run.climbed.shards if s.gradient is not None]
        losses = [part for _, part in run.climbed.forward_backward.parts]
        prints += map(fingerprint, (state.parameters, losses or [loss], own, [*gradients, loss]))
        applied = run.apply(loss)
        after = StepState(run.climbed, run.optimizer, run.scale, device, batch)
        prints += map(fingerprint, (after.parameters, after.optimizer, after.buffers, after.others))
        return torch.stack([one.to(device) for one in prints]), (loss, applied)

    def judge(self, tries: Sequence[Prints], step: int, moving: Sequence[str] = ()) -> str:
        """What is to be said of three tries of which the first two differ, or why none is kept."""
        began = [[prints[BEGINNING] for prints in one] for one in tries]
        if not began[0] == began[1] == began[2]:
            ranks = ranks_where(column_differs(began, rank) for rank in range(len(began[0])))
            problem = f"the copy of {ranks}'s state that a try starts from is not what was copied"
            raise WorldError(f"step {step}", problem, f"Go on from {LAST}, and {TEST}.")
        *earlier, last = tries
        odd = [number for number, one in enumerate(earlier, 1) if one != last]
        ranks, what = blame([earlier[number - 1] for number in odd] + [last])
        if len(odd) == len(earlier):
            problem = f"taken three times, and {ranks} differed each time: in {what}"
            if moving:
                problem += f"; the module holds a {moving[0]}, which no try can put back"
                remedy = "Derive what it gives from the step, or leave recheck out."
                raise WorldError(f"step {step}", problem, remedy)
            raise WorldError(f"step {step}", problem, f"Go on from {LAST}, and {TEST}.")
        return (
            f"{ranks} differed in {what} the {('first', 'second')[odd[0] - 1]} time this step was "
            f"taken; two of three tries agree, and the run goes on from them: {TEST}"
        )

    @property
    def checkpoint(self) -> str:
        """One from before copies parted, in words."""
        if self.agreed is None:
            return LAST
        return f"a checkpoint of step {self.agreed + 1} or before"


def gather(mine: Tensor, world: World) -> list[Prints]:
    """The prints of these tries, those of all ranks; every rank calls it."""
    every = [mine]
    if world.mesh is not None:
        every = [torch.zeros_like(mine) for _ in range(world.place.num_ranks)]
        dist.all_gather(every, mine)
    tables = torch.stack(every).tolist()
    return [[ranks[number] for ranks in tables] for number in range(len(mine))]


def blame(tries: Sequence[Prints]) -> tuple[str, str]:
    """The ranks that differ in the first stage in which any does, and all they differ in."""
    ranks = range(len(tries[0]))
    stages = [
        [column_differs([one[rank] for one in tries], stage) for rank in ranks]
        for stage in range(len(STAGES))
    ]
    first = next(differs for differs in stages if any(differs))
    named = [rank for rank in ranks if first[rank]]
    what = [name for name, differs in zip(STAGES, stages) if any(differs[r] for r in named)]
    return ranks_where(first), listed(what)


def column_differs(rows: Sequence[Sequence[int]], column: int) -> bool:
    return len({row[column] for row in rows}) > 1


def ranks_where(differs: Iterable[bool]) -> str:
    named = [str(rank) for rank, one in enumerate(differs) if one]
    return f"rank{'s' * (len(named) > 1)} {listed(named)}"


def listed(words: Sequence[str]) -> str:
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last
