"""The loop: a generator of reports. Saving, logging and stopping belong to whoever iterates."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np

from stepladder.data import Prefetcher, ReadPolicy
from stepladder.data import batches as batches_of
from stepladder.data.streams.stream_batches import buffer_of, is_stream, stream_batches
from stepladder.errors import DataError, PlanError, require_count, require_type
from stepladder.plan import BatchSplit, Plan
from stepladder.train.data_loader.loader_position import is_loader

from .batch_rows import rows_of
from .engine import Engine
from .pending_report import PendingReport
from .step_batch import Rows, check_series

OF_SAMPLES = "Give run.batches(data, size=32), or DataLoader(data, batch_size=32)."


def fit(
    run: Engine,
    batches: Iterable[Any],
    *,
    steps: int | None = None,
    rows: Rows | None = None,
) -> Iterator[PendingReport]:
    """Learn from batch after batch, yielding each step's report, up to `steps` in the run's life.

    The time spent waiting for a batch is measured apart, so that a report can say what data cost.

    Args:
        batches: of `run.batches`, a DataLoader, whose batches several ranks share, or anything
            that yields what `run.step` takes. After `run.resume` a DataLoader goes on where it was:
            it passes over the batches of this epoch that were read.
        steps: where the run ends, counted from its first step and not from a resumed one; None:
            where the batches end.
        rows: as in `run.step`.

    >>> import torch, stepladder as sl
    >>> run = sl.climb(torch.nn.Linear(4, 2), loss="cross_entropy", plan="fp32", device="cpu")
    >>> batch = torch.randn(8, 4), torch.randint(0, 2, (8,))
    >>> [report.step for report in sl.fit(run, [batch] * 3)]
    [0, 1, 2]
    """

    check_loop(run, batches, steps)

    def opened(start: int) -> Iterable[Any]:
        return run.shard(batches, rows, start=start)

    if is_loader(batches):
        source = run.reading.read(batches, run.position, opened, run.events)
    else:
        source = iter(opened(run.position))
    run.clock.restart(run.index)
    first = run.index
    while steps is None or run.index < steps:
        asked = time.perf_counter()
        try:
            batch = next(source)
        except StopIteration:
            if steps is not None:
                tell_shortfall(run.index, steps, batches)
            elif run.index == first:
                tell_nothing(batches)
            return
        run.clock.wait(time.perf_counter() - asked)
        yield run.step(batch, rows=rows)


def tell_nothing(batches: Any) -> None:
    """Warn of batches that were none; a loader may have been resumed where its epoch ends."""
    try:
        is_empty = not is_loader(batches) or len(batches) == 0
    except TypeError:  # a stream does not know how many it will have
        is_empty = False
    if is_empty:
        problem = "fit: there was no batch, and nothing was learned. "
        remedy = (
            "The loader has drop_last=True and fewer rows than a batch: make batches smaller."
            if is_loader(batches)
            else "A generator is spent after one loop: give a list, or make it again."
        )
        warnings.warn(problem + remedy, stacklevel=3)


def tell_shortfall(taken: int, steps: int, batches: Any) -> None:
    """Say that batches ended before the run did: a loader has had its epoch, others are spent."""
    problem = f"the batches ended at step {taken} of {steps}"
    if is_loader(batches):
        again = f"while run.index < {steps}: for report in sl.fit(run, loader, steps={steps})"
        warnings.warn(f"fit: {problem}. For another epoch call it again: {again}.", stacklevel=3)
    else:
        remedy = "Give more, or run.batches(data, size=32), which begins again; or leave steps out."
        raise DataError("batches", problem, remedy)


def check_loop(run: Any, batches: Any, steps: Any) -> None:
    """Refuse to loop over what is no series of batches, or with what is no run."""
    if not hasattr(run, "climbed"):
        problem = f"was given a {type(run).__name__}, and trains a run"
        raise PlanError("fit", problem, "Give it what climb returned.")
    if steps is not None and (not isinstance(steps, Integral) or steps < 1):
        problem = f"{steps!r} is not a whole number of steps"
        raise PlanError("steps", problem, "Write one, or leave it out to take all batches.")
    check_series(batches, OF_SAMPLES)


def feed(
    run: Engine,
    source: Any,
    *,
    size: int | None,
    seed: int,
    uneven: bool,
    stop: int | None,
    shuffle: bool | int,
    lengths: str | Callable[[int], int] | None,
    longest: int | None,
    workers: int | str,
    reading: ReadPolicy | None,
) -> Prefetcher:
    """This rank's part of the global batches, from where the run stands: see `Run.batches`."""
    if size is not None:
        require_count("size", size, "a number of samples")
    if stop is not None:
        require_count("stop", stop, "a number of samples to end before", least=0)
    require_count("seed", seed, "a seed", least=0)
    require_type("uneven", uneven, bool, "Use True or False.")
    whole = getattr(run.module, "samples_of", None)  # a module that reads samples in one piece
    source = whole(source) if whole else source
    common: dict[str, Any] = {
        "size": sequences_of(run, size, uneven),
        "seed": seed,
        "start": run.position,
        "stop": stop,
        "share": partial(rows_read, run.plan, run.world.data_index),
        "lengths": lengths,
        "longest": longest,
        "workers": workers,
        "device": run.world.device,
        "reading": reading,
    }
    if is_stream(source):
        streams, buffer = run.reading.streams, buffer_of(shuffle)
        samples, place = streams.samples(source, seed), streams.start(source)
        return stream_batches(source, samples=samples, place=place, buffer=buffer, **common)
    if not isinstance(shuffle, bool):
        problem = f"{shuffle!r} samples together are for a stream, and a source is shuffled whole"
        raise DataError("shuffle", problem, "Use True or False.")
    return batches_of(source, shuffle=shuffle, **common)


def sequences_of(run: Engine, size: int | None, uneven: bool) -> int:
    """Samples of a global batch, as was asked for or as the plan says."""
    ways = run.settled.data_ranks
    planned = run.plan.batch
    if not any((size, planned.sequences, planned.micro, planned.micro_batches)):
        rows = f"{ways} row{'s' if ways > 1 else ''}"
        problem = f"no size was given and the plan names no batch, so a batch has {rows}"
        remedy = "Write run.batches(data, size=32), or batch=32 in the plan."
        warnings.warn(f"run.batches: {problem}. {remedy}", stacklevel=6)
    settled = BatchSplit(size or planned.sequences, planned.micro, planned.micro_batches)
    if run.settled.slices:
        settled = settled.cut(run.settled.slices)
    if not (uneven and settled.sequences and settled.sequences % ways):
        settled = settled.settle(ways)
    assert settled.sequences is not None
    return settled.sequences


def held_out(run: Engine, source: Any, *, size: int, most: int) -> Iterator[Any]:
    """This rank's part of at most `most` batches of a source in its order, each sample once."""
    # Stages of a pipeline need as many rows each time: there the last batch begins again.
    stop = min(len(source), most * size) if run.world.layout.pipeline == 1 else None
    with batches_of(
        source,
        size=size,
        stop=stop,
        shuffle=False,
        share=partial(rows_read, run.plan, run.world.data_index),
        device=run.world.device,
    ) as feed:
        yield from islice(feed, most)


def rows_read(plan: Plan, data_index: int, step: int, size: int) -> np.ndarray:
    return rows_of(plan, size, data_index)
