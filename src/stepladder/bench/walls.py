"""Three walls of training on one device, each met in an experiment and passed by a rung.

Memory: what a step needs on the fullest rank, against a budget. Compute: how long a step takes on
one rank, and on several. Communication: what a rank sends for each sample. Bytes are counted, the
same in every run; times are ratios of this run. Beside each stands the planner's forecast of the
same wall where it is a real one: a 7B model, 300 billion tokens, nodes on a slow network.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepladder.errors import PlanError
from stepladder.launch import Ranks
from stepladder.planner import forecast

from .counted_plans import CountedPlan, CountLoad, count_plan
from .scaling import ScalingWorkload, time_rank

PASSES = 4  # of a batch that is accumulated
BUDGET = 2 / 3  # of what the first plan needs, unless a budget is given
MEMORY, COMPUTE, COMMUNICATION = "memory", "compute", "communication"
MODELS = {MEMORY: "llama2-7b", COMPUTE: "gpt2-xl", COMMUNICATION: "gpt2-xl"}
TOKENS = 300e9
SLOW = "4 nodes x 8 A100-80GB, 25 Gb/s"
FORECASTS = (  # wall, cluster, plan
    (MEMORY, "8 x A100-80GB", "bf16 ddp micro=1 batch=32"),
    (MEMORY, "8 x A100-80GB", "bf16 ddp micro=1 batch=32 recompute=blocks"),
    (MEMORY, "8 x A100-80GB", "bf16 zero3 micro=1 batch=32"),
    (COMPUTE, "1 A100-80GB", "bf16 micro=4 batch=512 recompute=blocks"),
    (COMPUTE, "8 x A100-80GB", "bf16 ddp micro=4 batch=512 recompute=blocks"),
    (COMPUTE, "8 nodes x 8 A100-80GB", "bf16 ddp micro=4 batch=512 recompute=blocks"),
    (COMMUNICATION, SLOW, "bf16 ddp micro=4 batch=128"),
    (COMMUNICATION, SLOW, "bf16 ddp micro=4 batch=512"),
    (COMMUNICATION, SLOW, "bf16 ddp micro=4 batch=128 compress=bf16"),
    (COMMUNICATION, SLOW, "bf16 ddp micro=4 batch=128 compress=powersgd:4"),
    (COMMUNICATION, SLOW, "bf16 zero3 shard=32 micro=4 batch=128"),
    (COMMUNICATION, SLOW, "bf16 zero3 replicate=4 shard=8 micro=4 batch=128"),
)


@dataclass(frozen=True, slots=True)
class WallLoad:
    """What every row trains."""

    model: str = "gpt-tiny"
    batch: int = 16  # samples a step, of all ranks
    sequence: int = 64
    ranks: int = 2
    steps: int = 10  # that are timed

    @property
    def micro(self) -> int:
        return self.batch // self.ranks

    def check(self) -> None:
        unit = self.ranks * PASSES
        if self.batch % unit:
            problem = f"{self.batch} samples do not divide over {self.ranks} ranks in {PASSES} "
            raise PlanError("batch", f"{problem}micro-batches", f"Use a multiple of {unit}.")


@dataclass(frozen=True, slots=True)
class WallPlan:
    """One plan, and the walls that it is compared at."""

    walls: tuple[str, ...]
    name: str
    words: str
    samples: int  # of a step, of all ranks


@dataclass(frozen=True, slots=True)
class CountedRow:
    """One plan at its walls, counted."""

    walls: tuple[str, ...]
    name: str
    counted: CountedPlan


@dataclass(frozen=True, slots=True)
class TimedRow:
    """One number of ranks, timed on the same batch."""

    ranks: int
    seconds: float  # of a step
    times_faster: float  # than on one rank


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """A wall and a way past it, as the planner sees them."""

    wall: str
    model: str
    cluster: str
    plan: str
    memory_bytes: int
    fits: bool
    step_seconds: float
    communication_share: float  # of the step, that nothing hides
    days: float  # for all tokens


def plans_of(load: WallLoad) -> list[WallPlan]:
    """The plain plan, which meets both walls, and what passes the one or the other."""
    micro, few, more = load.micro, load.micro // PASSES, load.batch * PASSES
    ddp, zero3 = f"fp32 ddp replicate={load.ranks}", f"fp32 zero3 shard={load.ranks}"
    both = (MEMORY, COMMUNICATION)
    rows = (
        (both, "plain", f"{ddp} micro={micro}", load.batch),
        ((MEMORY,), "recomputation", f"{ddp} micro={micro} recompute=blocks", load.batch),
        ((MEMORY,), "accumulation", f"{ddp} micro={few}", load.batch),
        ((MEMORY,), "both of these", f"{ddp} micro={few} recompute=blocks", load.batch),
        (both, "full sharding", f"{zero3} micro={micro}", load.batch),
        ((MEMORY,), "sharding, recomputation", f"{zero3} micro={micro} recompute=blocks",
         load.batch),
        ((COMMUNICATION,), "larger batch, accumulated", f"{ddp} micro={micro}", more),
        ((COMMUNICATION,), "the same, sharded", f"{zero3} micro={micro}", more),
        ((COMMUNICATION,), "16-bit gradients", f"{ddp} micro={micro} compress=bf16", load.batch),
        ((COMMUNICATION,), "PowerSGD", f"{ddp} micro={micro} compress=powersgd:4", load.batch),
    )  # fmt: skip
    return [
        WallPlan(walls, name, f"{words} batch={size}", size) for walls, name, words, size in rows
    ]


def count_plans(pool: Ranks, load: WallLoad) -> Iterator[CountedRow]:
    """One row a plan, as each is counted."""
    load.check()
    work = CountLoad(load.model, load.sequence)
    for plan in plans_of(load):
        counted = count_plan(pool, work, plan.words, plan.samples, ranks=load.ranks)
        yield CountedRow(plan.walls, plan.name, counted)


def time_ranks(pool: Ranks, load: WallLoad, *, rounds: int = 3) -> list[TimedRow]:
    """The same batch on one rank and on all, in turns; each rank computes with one thread."""
    work = ScalingWorkload(load.model, load.batch, load.sequence, "fp32 ddp", "cpu", load.steps)
    seconds: dict[int, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for ranks in (1, load.ranks):
            answers = pool.call(time_rank, work, "strong", ranks=ranks)
            # A step is over when the slowest rank's is.
            seconds[ranks].append(max(statistics.median(answer) for answer in answers))
    best = {ranks: min(found) for ranks, found in seconds.items()}
    return [TimedRow(ranks, found, best[1] / found) for ranks, found in best.items()]


def forecast_walls() -> list[ForecastRow]:
    """The planner's answer for every wall."""
    rows = []
    for wall, cluster, plan in FORECASTS:
        found = forecast(MODELS[wall], plan, cluster)
        needed = found.seconds_for(TOKENS)
        assert found.time is not None and needed is not None, "the devices are of the table"
        share = found.time.communication / found.time.step_seconds
        rows.append(
            ForecastRow(wall, MODELS[wall], cluster, plan, found.memory.peak_bytes, found.fits,
                        found.time.step_seconds, share, needed / 86_400)
        )  # fmt: skip
    return rows


def budget_of(rows: Sequence[CountedRow], asked: int | None) -> int:
    """The bytes that a rank may hold: those asked for, or a share of what the plain plan needs."""
    return asked or int(BUDGET * rows[0].counted.peak_bytes)
