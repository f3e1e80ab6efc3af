"""The loop: a generator of reports. Saving, logging and stopping belong to whoever iterates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from stepladder.data import Prefetcher, batches
from stepladder.plan import Batch as BatchPlan
from stepladder.plan import Plan

from .batch_rows import rows_of
from .engine import Engine
from .pending_report import PendingReport


def fit(run: Engine, feed: Iterable[Any], *, steps: int | None = None) -> Iterator[PendingReport]:
    """Learn from batch after batch, yielding each step's report, up to `steps` in the run's life.

    The time spent waiting for a batch is noted apart, so that a report can say what data cost.
    """
    source = iter(feed)
    run.clock.restart(run.index)
    while steps is None or run.index < steps:
        asked = time.perf_counter()
        try:
            batch = next(source)
        except StopIteration:
            return
        run.clock.wait(time.perf_counter() - asked)
        yield run.step(batch)


def feed(
    run: Engine,
    source: Any,
    *,
    size: int | None = None,
    seed: int = 0,
    uneven: bool = False,
    **how: Any,
) -> Prefetcher:
    """This rank's part of the global batches, from where the run stands: the same on any ranks.

    Args:
        uneven: let shares differ by a row where a batch does not divide by the ranks, as happens
            to a run that goes on with fewer of them; else such a batch is refused.
    """
    ways = run.plan.layout.data_ways
    planned = run.plan.batch
    passes = planned.passes if planned.micro is None else None
    settled = BatchPlan(size or planned.sequences, planned.micro, passes)
    if not (uneven and settled.sequences and settled.sequences % ways):
        settled = settled.settle(ways)
    assert settled.sequences is not None
    whole = getattr(run.module, "samples_of", None)  # a module that reads samples in one piece
    return batches(
        whole(source) if whole else source,
        size=settled.sequences,
        seed=seed,
        start=run.position,
        share=partial(rows_read, run.plan, run.world.data_index),
        device=run.world.device,
        **how,
    )


def rows_read(plan: Plan, data_index: int, step: int, size: int) -> np.ndarray:
    return rows_of(plan, size, data_index)
