"""Reading in worker processes, through torch's DataLoader."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stepladder.data.batch import Batch
from stepladder.errors import DataError, StepladderError
from stepladder.seam.data_loader import end_workers


class StepDataset(Dataset):
    """One whole batch per step, which torch's loader sees as one item."""

    def __init__(self, make: Callable[[int], Batch]) -> None:
        self.make = make

    def __getitem__(self, step: int) -> Batch | StepladderError | None:
        try:
            return self.make(step)
        except StepladderError as error:
            return error  # as a value, because the loader would rebuild a raised one from its text
        except StopIteration:  # a stream's end
            return None


def run_in_processes(
    make: Callable[[int], Batch], steps: range, *, count: int, depth: int, forked: bool = False
) -> Callable[[int], Batch]:
    """Have `count` processes call `make`, with results in order."""
    if not forked:
        _check_pickles(make)
    loader: DataLoader = DataLoader(
        StepDataset(make),
        batch_size=None,
        sampler=steps,
        num_workers=count,
        prefetch_factor=max(2, -(-depth // count)),
        multiprocessing_context="fork" if forked else "spawn",
        generator=torch.Generator(),  # the loader draws a seed, and not from the run's
    )
    return WorkerBatches(iter(loader))


class WorkerBatches:
    """Batches from the worker processes; steps must be asked for in order."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers

    def __call__(self, step: int) -> Batch:
        answer = next(self.answers)
        if isinstance(answer, StepladderError):
            raise answer
        if answer is None:
            raise StopIteration
        return answer

    def close(self) -> None:
        end_workers(self.answers)


def _check_pickles(make: Callable[[int], Batch]) -> None:
    try:
        pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise DataError(
            "workers",
            f"the source or its share cannot be sent to another process ({error})",
            "Define its classes and functions at the top of a module, or use threads: workers=2.",
        ) from error
