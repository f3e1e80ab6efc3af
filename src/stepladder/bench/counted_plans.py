"""Plans counted on local ranks: bytes held and bytes sent in a step, and how long it takes.

The same global batch goes to every plan: a rank of data parallelism takes its share of the rows, a
stage of a pipeline all of them. Bytes are the same in every run. Times are those of ranks that
share this machine's cores, so only their ratios say something.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from stepladder.data import Batch
from stepladder.errors import PlanError
from stepladder.launch import Ranks
from stepladder.measure import Traffic, measure_memory
from stepladder.plan import Plan
from stepladder.record import Memory
from stepladder.train import Run, climb

from .workloads import make_workload

WARMUP = 3  # steps, in which DDP lays out its buckets and PowerSGD begins


@dataclass(frozen=True, slots=True)
class CountLoad:
    """What is trained under every plan."""

    model: str
    sequence: int
    steps: int = 0  # that are timed


@dataclass(frozen=True, slots=True)
class CountedPlan:
    """One plan: bytes held by the fullest rank, and sent by the one that sends most."""

    words: str
    samples: int  # of a step, of all ranks
    memory: Memory
    sent_bytes: int  # in a step
    seconds: float | None = None  # of a step, median, of the slowest rank

    @property
    def peak_bytes(self) -> int:
        return self.memory.peak_bytes

    @property
    def sent_per_sample(self) -> float:
        return self.sent_bytes / self.samples


def count_plan(
    pool: Ranks, load: CountLoad, words: str, samples: int, *, ranks: int
) -> CountedPlan:
    """Run a plan on local ranks and count."""
    answers = pool.call(count_rank, load, words, samples, ranks=ranks)
    fullest = max((memory for memory, _, _ in answers), key=lambda memory: memory.peak_bytes)
    sent = round(max(sent for _, sent, _ in answers))
    seconds = max(median for _, _, median in answers) if load.steps else None
    return CountedPlan(words, samples, fullest, sent, seconds)


def count_rank(load: CountLoad, words: str, samples: int) -> tuple[Memory, float, float]:
    """On one rank: what a step holds at its peak, what it sends, and its seconds."""
    torch.set_num_threads(1)
    work = make_workload(load.model, batch=samples, sequence=load.sequence, num_batches=1)
    (whole,) = work.batches
    run = climb(work.make(), loss=work.loss, plan=Plan.parse(words), device="cpu", sample=whole)
    each, index = samples // run.world.layout.data_ranks, run.world.data_index
    batch = whole.rows(slice(each * index, each * (index + 1)))
    for _ in range(WARMUP):
        step(run, batch)
    with Traffic() as traffic:
        step(run, batch)
    memory = measure_memory(partial(step, run, batch), run.module, run.optimizer, run.world.device)
    seconds = [time_step(run, batch) for _ in range(load.steps)]
    return memory, traffic.sent_bytes, statistics.median(seconds) if seconds else 0.0


def time_step(run: Run, batch: Batch) -> float:
    dist.barrier()  # or a rank that was late would be waited for inside the step
    began = time.perf_counter()
    step(run, batch)
    return time.perf_counter() - began


def step(run: Run, batch: Batch) -> None:
    run.step(batch).read()


def equal_plans(ranks: int, samples: int) -> list[tuple[str, str]]:
    """A pipeline, DDP and full sharding over the same ranks and the same global batch."""
    if samples % ranks:
        problem = f"{samples} samples do not divide over {ranks} ranks"
        below = samples // ranks * ranks
        near = f"{below} or {below + ranks}" if below else str(ranks)
        raise PlanError("batch", problem, f"Nearest that do: {near}.")
    share, batch = samples // ranks, f"batch={samples}"
    return [
        ("pipeline, 1F1B", f"fp32 pipeline={ranks} schedule=1f1b micro=1 {batch}"),
        ("DDP", f"fp32 ddp replicate={ranks} micro={share} {batch}"),
        ("ZeRO 3", f"fp32 zero3 shard={ranks} micro={share} {batch}"),
    ]


def compare_equal(
    pool: Ranks, load: CountLoad, samples: int, *, ranks: int
) -> Iterator[tuple[str, CountedPlan]]:
    """Each of the equal plans by its name, as it is counted."""
    for name, words in equal_plans(ranks, samples):
        yield name, count_plan(pool, load, words, samples, ranks=ranks)
