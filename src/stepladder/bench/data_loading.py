"""How fast batches arrive under each loader setting, with no model behind them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from stepladder.data import batches
from stepladder.errors import StepladderError


@dataclass(frozen=True, slots=True)
class LoaderRow:
    workers: str
    batches_per_second: float | None = None
    samples_per_second: float | None = None
    first_batch_ms: float | None = None  # from asking to the first batch in hand
    problem: str = ""


def measure_loaders(
    source: Any, settings: Sequence[str], *, size: int, num_batches: int = 50, device: str = "cpu"
) -> Iterator[LoaderRow]:
    """One row a setting, as each is done."""
    for workers in settings:
        try:
            yield measure_loader(source, workers, size, num_batches, device)
        except StepladderError as problem:
            yield LoaderRow(workers, problem=str(problem))


def measure_loader(
    source: Any, workers: str, size: int, num_batches: int, device: str
) -> LoaderRow:
    how = int(workers) if workers.isdigit() else workers
    began = time.perf_counter()
    with batches(source, size=size, workers=how, device=device) as feed:
        next(feed)
        first = time.perf_counter()
        for _ in islice(feed, num_batches):
            pass
        seconds = time.perf_counter() - first
    rate = num_batches / seconds
    return LoaderRow(workers, rate, rate * size, (first - began) * 1e3)
