"""Strong and weak scaling: efficiency by number of ranks, and what the lost time went to.

Efficiency is what one rank's time would be, divided by what it is: strong t(1) / (N t(N)), weak
t(1) / t(N). Every rank computes with one thread, so that N ranks have N times the processor one
has; beyond the machine's cores ranks share them, and the table says so.

Sizes take turns, round after round, so that a slow minute of the machine hits all of them.

What is lost has causes. A few more steps run under the profiler on every size; whatever a cause
takes beyond its fair share of what it took on one rank (strong 1 / N of it, weak all of it) was
lost to it, as a share of the step.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle

import torch
import torch.distributed as dist

from stepladder.data import Batch
from stepladder.errors import PlanError
from stepladder.launch import Ranks
from stepladder.plan import Plan
from stepladder.train import Run, climb
from stepladder.train.user_code.user_code import UserCode
from stepladder.world import Place, synchronize

from .time_plans import Workload
from .workloads import make_workload

WARMUP = 2
KINDS = ("strong", "weak")
PROFILED = 3  # steps
LEAST_LOSS = 0.01  # of a step that is worth naming


@dataclass(frozen=True, slots=True)
class ScalingWorkload:
    """What every size trains."""

    model: UserCode | str
    batch: int  # samples a step on one rank; of all ranks in strong scaling
    sequence: int
    words: str = "ddp"  # the plan's, without its axes
    device: str = "auto"
    steps: int = 10


@dataclass(frozen=True, slots=True)
class ScalingRow:
    kind: str
    ranks: int
    batch: int
    step_ms: float
    samples_per_second: float
    efficiency: float
    lost: Mapping[str, float] = field(default_factory=dict)  # share of the step, by cause
    note: str = ""


def measure_scaling(pool: Ranks, load: ScalingWorkload, *, rounds: int = 3) -> Iterator[ScalingRow]:
    """One row a kind and number of ranks: 1, 2, 4 … up to the pool's."""
    sizes = [size for size in (2**power for power in range(12)) if size <= pool.ranks]
    if pool.ranks not in sizes:
        sizes.append(pool.ranks)
    if any(load.batch % size for size in sizes):
        problem = f"{load.batch} samples do not divide over {', '.join(map(str, sizes))} ranks"
        raise PlanError("batch", problem, f"Use a multiple of {math.lcm(*sizes)}.")
    cases = [(kind, size) for kind in KINDS for size in sizes]
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for kind, ranks in cases:
            answers = pool.call(time_rank, load, kind, ranks=ranks)
            # A step is over when the slowest rank's is.
            seconds[kind, ranks].append(max(statistics.median(answer) for answer in answers))
    best = {case: min(values) for case, values in seconds.items()}
    spent = {case: mean_causes(pool.call(profile_rank, load, case[0], ranks=case[1]))
             for case in cases}  # fmt: skip
    for kind, ranks in cases:
        fair = {c: each / (1 if kind == "weak" else ranks) for c, each in spent[kind, 1].items()}
        yield row_of(load, kind, ranks, best, losses(spent[kind, ranks], fair))


def mean_causes(ranks: list[dict[str, float]]) -> dict[str, float]:
    return {cause: statistics.fmean(each[cause] for each in ranks) for cause in ranks[0]}


def losses(spent: Mapping[str, float], fair: Mapping[str, float]) -> dict[str, float]:
    """What each cause took beyond its fair share, as shares of the step, largest first."""
    whole = sum(spent.values())
    lost = {cause: (each - fair[cause]) / whole for cause, each in spent.items()}
    ordered = sorted(lost.items(), key=lambda pair: -pair[1])
    return {cause: share for cause, share in ordered if share > LEAST_LOSS}


def row_of(
    load: ScalingWorkload,
    kind: str,
    ranks: int,
    best: dict[tuple[str, int], float],
    lost: Mapping[str, float],
) -> ScalingRow:
    batch = load.batch * (ranks if kind == "weak" else 1)
    seconds, alone = best[kind, ranks], best[kind, 1]
    gain = alone / seconds
    return ScalingRow(
        kind,
        ranks,
        batch,
        seconds * 1e3,
        batch / seconds,
        gain if kind == "weak" else gain / ranks,
        lost,
        "" if ranks <= cores() else f"{ranks} ranks share {cores()} cores",
    )


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_rank(load: ScalingWorkload, kind: str) -> tuple[Run, list[Batch]]:
    """This rank's run, and batches on its device."""
    torch.set_num_threads(1)
    ranks = Place.from_environment().num_ranks
    each = load.batch if kind == "weak" else load.batch // ranks
    work: Workload = make_workload(load.model, batch=each, sequence=load.sequence, num_batches=2)
    plan = Plan.parse(f"{load.words} micro={each}")
    run = climb(work.make(), loss=work.loss, plan=plan, device=load.device)
    return run, [batch.to(run.world.device) for batch in work.batches]


def time_rank(load: ScalingWorkload, kind: str) -> list[float]:
    """On one rank: seconds of each timed step."""
    run, batches = start_rank(load, kind)
    seconds = []
    for index in range(WARMUP + load.steps):
        dist.barrier()  # or a rank that was late would be waited for inside the step
        synchronize(run.world.device)
        began = time.perf_counter()
        run.step(batches[index % len(batches)]).read()
        synchronize(run.world.device)
        seconds.append(time.perf_counter() - began)
    return seconds[WARMUP:]


def profile_rank(load: ScalingWorkload, kind: str) -> dict[str, float]:
    """On one rank: seconds of a step by cause."""
    run, batches = start_rank(load, kind)
    return dict(run.profile(cycle(batches), steps=PROFILED).causes)
