"""Memory of each rank under DDP and ZeRO 1, 2 and 3: measured beside the formula.

ZeRO 1 slices what the optimizer remembers, ZeRO 2 also the gradients, ZeRO 3 also the parameters.
Under torch's engine ZeRO 2 keeps its parameters in slices between batches too, and whole while a
batch is worked on: its peak says so, and its state between steps is ZeRO 3's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from stepladder.data import Batch
from stepladder.launch import Ranks
from stepladder.measure import measure_memory, measure_state
from stepladder.plan import Plan
from stepladder.planner import forecast_state
from stepladder.record import Memory
from stepladder.train import Run, climb, facts_for

from .time_plans import Workload

WORDS = ("ddp", "zero1", "zero2", "zero3")
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

    @property
    def error(self) -> float:
        """The largest difference of any owner, relative to theory."""
        return max(apart(getattr(self.measured, o), getattr(self.theory, o)) for o in OWNERS)


def apart(measured: int, theory: int) -> float:
    return abs(measured - theory) / theory if theory else float(measured > 0)


def measure_zero(pool: Ranks, work: Workload, *, ranks: int, words: str = "") -> Iterator[ZeroRow]:
    """DDP and the three stages, each on all ranks; `words` are the plan's others."""
    facts = facts_for(work.make(), work.batches[0])
    for name in WORDS:
        axis = "replicate" if name == "ddp" else "shard"
        plan = Plan.parse(f"{words} {name} {axis}={ranks} micro={work.batches[0].num_rows}")
        settled = plan.settle(ranks)
        answers = pool.call(state_and_peak, work, plan, ranks=ranks)
        (theory,) = forecast_state(facts, settled)
        states = [state for state, _ in answers]
        fullest = Memory(**{o: max(getattr(state, o) for state in states) for o in OWNERS})
        yield ZeroRow(name, str(plan), ranks, fullest, theory, max(peak for _, peak in answers))


def state_and_peak(work: Workload, plan: Plan) -> tuple[Memory, int]:
    """On one rank: what it holds, and the most it held in one step."""
    run = climb(work.make(), loss=work.loss, plan=plan, device=work.device)
    batch = work.batches[0].to(run.world.device)
    run.step(batch).read()
    state = measure_state(run, batch)
    peak = measure_memory(partial(step, run, batch), run.module, run.optimizer, run.world.device)
    return state, peak.peak_bytes


def step(run: Run, batch: Batch) -> None:
    run.step(batch).read()
