"""Gradient accumulation: the same global batch in more and more micro-batches, losses compared.

Each row trains from the same weights on the same batches. The loss of a global batch does not
depend on how it was cut, so all curves are one; what differs is time, and a micro-batch's memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stepladder.measure import measure_memory
from stepladder.plan import BatchSplit, Optimizer, Plan
from stepladder.train import climb

from .time_plans import Workload

SAME = 1e-3  # of a loss; rounding grows over the steps, and this is far below what training shows


@dataclass(frozen=True, slots=True)
class AccumulationRow:
    micro_batches: int
    micro: int
    step_ms: float
    activation_bytes: int
    losses: tuple[float, ...]
    difference: float  # the largest, of any step, from the first row's

    @property
    def same(self) -> bool:
        return self.difference <= SAME


def measure_accumulation(
    work: Workload, plan: Plan, *, optimizer: str = "adamw lr=1e-3 clip=1"
) -> Iterator[AccumulationRow]:
    """One row a number of micro-batches: 1, 2, 4 … down to micro-batches of one sample."""
    rows = work.batches[0].num_rows
    expected: tuple[float, ...] = ()
    micro_batches = 1
    while micro_batches <= rows:
        if rows % micro_batches == 0:
            settled = replace(
                plan,
                batch=BatchSplit(rows, rows // micro_batches),
                optimizer=Optimizer.parse(optimizer),
            )
            row = measure_micro_batches(work, settled, expected)
            expected = expected or row.losses
            yield row
        micro_batches *= 2


def measure_micro_batches(
    work: Workload, plan: Plan, expected: tuple[float, ...]
) -> AccumulationRow:
    run = climb(work.make(), loss=work.loss, plan=plan, device=work.device)
    batches = [batch.to(run.world.device) for batch in work.batches]
    began = time.perf_counter()
    losses = tuple(run.step(batch).loss for batch in batches)
    seconds = (time.perf_counter() - began) / len(batches)
    memory = measure_memory(
        lambda: run.step(batches[0]).read(), run.module, run.optimizer, run.world.device
    )
    apart = [abs(a - b) / abs(b) for a, b in zip(losses, expected)]
    micro = plan.batch.micro or len(batches[0].valid_by_row)
    return AccumulationRow(
        micro_batches=batches[0].num_rows // micro,
        micro=micro,
        step_ms=seconds * 1e3,
        activation_bytes=memory.activations + memory.logits,
        losses=losses,
        difference=max(apart, default=0.0),
    )
