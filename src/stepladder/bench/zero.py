"""Ways to share the training state: memory of each rank beside the formula, speed and traffic.

ZeRO 1 slices what the optimizer remembers, ZeRO 2 also the gradients, ZeRO 3 also the parameters.
Under torch's engine ZeRO 2 keeps its parameters in slices between batches too, and whole while a
batch is worked on: its peak says so, and its state between steps is ZeRO 3's. Further rows gather
blocks of ZeRO 3 further ahead or not at all, keep more of them whole, or slice within groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from stepladder.data import Batch
from stepladder.launch import Ranks
from stepladder.measure import measure_memory, measure_state, sent_since, wire_bytes
from stepladder.plan import Plan
from stepladder.planner import forecast_state
from stepladder.record import Memory
from stepladder.train import Run, climb, facts_for

from .time_plans import Workload, time_steps

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "zero3 prefetch=0", "zero3 prefetch=2",
              "zero3 gathered=4")  # fmt: skip
OWNERS = ("parameters", "gradients", "optimizer")
ENOUGH = 0.02  # of what the arithmetic says


@dataclass(frozen=True, slots=True)
class ZeroRow:
    """One way of sharing the training state over so many ranks."""

    name: str
    plan: str
    ranks: int
    measured: Memory  # on the fullest rank, when all gradients are there
    theory: Memory
    peak_bytes: int  # of a whole step
    step_ms: float = 0.0  # the fastest step of the slowest rank
    samples_per_second: float = 0.0  # over all ranks
    sent_bytes: int | None = None  # in a step by the rank that sent most; None: nobody counts them

    @property
    def error(self) -> float:
        """The largest difference of any owner, relative to theory."""
        return max(apart(getattr(self.measured, o), getattr(self.theory, o)) for o in OWNERS)


@dataclass(frozen=True, slots=True)
class RankFigures:
    """What one rank measured of one strategy."""

    state: Memory
    peak_bytes: int
    seconds: float
    sent_bytes: int | None


def apart(measured: int, theory: int) -> float:
    return abs(measured - theory) / theory if theory else float(measured > 0)


def strategies(ranks: int) -> list[tuple[str, str]]:
    """Name and words of each row; groups of half the ranks, where those are several."""
    axis = {"ddp": f"ddp replicate={ranks}"}
    found = [(name, axis.get(name, f"{name} shard={ranks}")) for name in STRATEGIES]
    half, odd = divmod(ranks, 2)
    return found + [("hsdp", f"hsdp shard={half} replicate=2")] * (half > 1 and not odd)


def measure_zero(
    pool: Ranks, work: Workload, *, ranks: int, words: str = "", steps: int = 10
) -> Iterator[ZeroRow]:
    """Every strategy on all ranks; `words` are the plan's others."""
    facts = facts_for(work.make(), work.batches[0])
    rows = work.batches[0].num_rows
    for name, own in strategies(ranks):
        plan = Plan.parse(f"{words} {own} micro={rows}")
        (theory,) = forecast_state(facts, plan.settle(ranks))
        found: list[RankFigures] = pool.call(measure_rank, work, plan, steps, ranks=ranks)
        fullest = Memory(**{o: max(getattr(each.state, o) for each in found) for o in OWNERS})
        seconds = max(each.seconds for each in found)
        sent = [each.sent_bytes for each in found if each.sent_bytes is not None]
        yield ZeroRow(
            name, str(plan), ranks, fullest, theory, max(each.peak_bytes for each in found),
            seconds * 1e3, rows * ranks / seconds, max(sent) if len(sent) == ranks else None,
        )  # fmt: skip


def measure_rank(work: Workload, plan: Plan, steps: int) -> RankFigures:
    """On one rank: what it holds, the most it held in one step, its pace and what it sent."""
    torch.set_num_threads(1)
    run = climb(work.make(), loss=work.loss, plan=plan, device=work.device)
    batch = work.batches[0].to(run.world.device)
    run.step(batch).read()
    state = measure_state(run, batch)
    peak = measure_memory(partial(step, run, batch), run.module, run.optimizer, run.world.device)
    sent = bytes_sent(run, batch)
    seconds, _ = time_steps(run, [batch], 1, steps)
    return RankFigures(state, peak.peak_bytes, min(seconds), sent)


def bytes_sent(run: Run, batch: Batch) -> int | None:
    """Bytes that this rank sent in a step; None for NCCL, whose ways no counter of TCP sees."""
    dist.barrier()
    before = wire_bytes() if run.world.device.type == "cpu" else None
    step(run, batch)
    dist.barrier()  # all has arrived, so all has been sent; its own bytes are few
    sent = sent_since(before)
    dist.barrier()  # a rank that left would close connections that others still count
    return sent


def step(run: Run, batch: Batch) -> None:
    run.step(batch).read()
