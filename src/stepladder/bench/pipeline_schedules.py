"""Pipeline schedules on local ranks: a timeline of micro-batches, and the measured bubble.

Two kinds of blocks. *Matrix* blocks compute, and so share the machine's cores among ranks: on fewer
cores than ranks the idle time says more about the machine than about the schedule. *Waiting* blocks
take a set time for forward, for the gradient of their input and for that of their weight, and no
core: each rank is then a device of its own, and the schedule is all that is left to see.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.launch import Ranks
from stepladder.plan import Plan, Schedule
from stepladder.planner import bubble_share
from stepladder.rungs.pipeline.pipeline import Pipeline
from stepladder.rungs.pipeline.schedule import Event
from stepladder.train import climb

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved:2", "zero-bubble")
BLOCKS_A_RANK = 2  # so that two stages of a rank have one each
WARMUP = 2


@dataclass(frozen=True, slots=True)
class ScheduleCase:
    """One schedule over so many ranks and micro-batches."""

    schedule: str
    ranks: int
    micros: int
    work: str  # "waiting" or "matrix"
    block_ms: float = 10.0  # a waiting block's forward; its backward takes twice that
    width: int = 256  # of a matrix block

    @property
    def plan(self) -> Plan:
        word = "gpipe" if self.schedule == "naive" else self.schedule
        return Plan.parse(f"fp32 pipeline={self.ranks} schedule={word} micro={self.rows}")

    @property
    def rows(self) -> int:
        """Of a micro-batch; the batch is the same under every schedule."""
        return self.micros if self.schedule == "naive" else 1

    @property
    def formula(self) -> float:
        """The share of time in which a rank is idle, were all stages alike and sending free."""
        if self.schedule == "naive":
            return (self.ranks - 1) / self.ranks
        waits = bubble_share(Schedule.parse(self.schedule), self.ranks)
        return waits / (self.micros + waits)


@dataclass(frozen=True, slots=True)
class ScheduleTimeline:
    """One step of one schedule, seen on all ranks."""

    case: ScheduleCase
    events: tuple[tuple[Event, ...], ...]  # by rank, in seconds since the first began
    step_ms: float  # median over several steps
    idle: float  # measured share of the ranks' time in which they did nothing, median
    loss: float  # after all steps: the same under every schedule

    @property
    def seconds(self) -> float:
        return max(event.end for row in self.events for event in row)


def measure_schedules(
    pool: Ranks, cases: Sequence[ScheduleCase], *, steps: int
) -> Iterator[ScheduleTimeline]:
    """One timeline a case, as each is done: the step whose idle time is the median."""
    for case in cases:
        found = pool.call(record_rank, case, steps, ranks=case.ranks)
        loss = found[0][-1][1]
        whole = [timeline(case, [rank[step][0] for rank in found], loss) for step in range(steps)]
        ordered = sorted(whole, key=lambda one: one.idle)
        yield ordered[len(ordered) // 2]


def timeline(case: ScheduleCase, rows: Sequence[list[Event]], loss: float) -> ScheduleTimeline:
    first = min(event.start for events in rows for event in events)
    moved = tuple(
        tuple(Event(e.stage, e.micro, e.kind, e.start - first, e.end - first) for e in events)
        for events in rows
    )
    seconds = max(event.end for row in moved for event in row)
    busy = sum(event.end - event.start for row in moved for event in row)
    return ScheduleTimeline(case, moved, seconds * 1e3, 1 - busy / (seconds * case.ranks), loss)


def record_rank(case: ScheduleCase, steps: int) -> list[tuple[list[Event], float]]:
    """On one rank: what its stages did in each step, and the loss."""
    torch.manual_seed(0)
    rows = case.micros
    inputs, targets = torch.randn(rows, case.width), torch.randn(rows, case.width)
    taken = climb(
        Chain(case), loss="squared_error", optimizer="sgd lr=1e-3", plan=case.plan, device="cpu",
        sample=(inputs, targets),
    )  # fmt: skip
    passes: Any = taken.climbed.forward_backward
    assert isinstance(passes, Pipeline)
    seen = []
    for step in range(WARMUP + steps):
        passes.events = []
        dist.barrier()  # all begin together
        loss = taken.step((inputs, targets)).loss
        if step >= WARMUP:
            seen.append((passes.events, loss))
    return seen


class Chain(nn.Module):
    """Blocks of the kind asked for."""

    def __init__(self, case: ScheduleCase) -> None:
        super().__init__()
        self.enter = Shift(case.width)
        kind = Waiting if case.work == "waiting" else Matrices
        self.blocks = nn.ModuleList(kind(case) for _ in range(case.ranks * BLOCKS_A_RANK))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.enter(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class Shift(nn.Module):
    """Something to learn before the blocks, so that the first of them works as hard in backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.zeros(width))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.by


class Matrices(nn.Module):
    def __init__(self, case: ScheduleCase) -> None:
        super().__init__()
        self.tall = nn.Parameter(torch.randn(case.width, 4 * case.width) / case.width**0.5)
        self.wide = nn.Parameter(torch.randn(4 * case.width, case.width) / (40 * case.width))
        self.times = 64  # rows, so that a product is worth a thread's while

    def forward(self, hidden: Tensor) -> Tensor:
        many = hidden.repeat_interleave(self.times, 0)
        added = torch.relu(many @ self.tall) @ self.wide
        return hidden + added.view(len(hidden), self.times, -1).mean(1)


class Waiting(nn.Module):
    """Takes its time and no core. Its weight's gradient is a node of its own, so that a schedule
    that splits backward can put it off."""

    def __init__(self, case: ScheduleCase) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(case.width))
        self.seconds = case.block_ms / 1e3

    def forward(self, hidden: Tensor) -> Tensor:
        seconds = self.seconds * len(hidden)
        return Wait.apply(hidden, seconds, seconds) + Wait.apply(self.weight, 0.0, seconds)


class Wait(torch.autograd.Function):
    """The identity, after a while."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, ahead: float, back: float) -> Tensor:
        context.back = back
        time.sleep(ahead)
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(context.back)
        return gradient, None, None
