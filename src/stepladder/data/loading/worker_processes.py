"""Reading in processes of their own, through torch's spawned data workers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stepladder.data.batch import Batch
from stepladder.errors import DataError, StepladderError
from stepladder.seam.data_loader import end_workers


class ByStep(Dataset):
    """A whole batch for each step, seen by torch's loader as one item."""

    def __init__(self, make: Callable[[int], Batch]) -> None:
        self.make = make

    def __getitem__(self, step: int) -> Batch | StepladderError:
        try:
            return self.make(step)
        except StepladderError as error:
            return error  # as a value: the loader would rebuild it from its text alone


def in_processes(
    make: Callable[[int], Batch], steps: range, *, count: int, depth: int
) -> Callable[[int], Batch]:
    """The same `make`, answered in order by `count` processes."""
    _check_pickles(make)
    loader: DataLoader = DataLoader(
        ByStep(make),
        batch_size=None,
        sampler=steps,
        num_workers=count,
        prefetch_factor=max(2, -(-depth // count)),
        multiprocessing_context="spawn",
        generator=torch.Generator(),  # the loader draws a seed; not from the run's own generator
    )
    return Answers(iter(loader))


class Answers:
    """Batches as the processes hand them over; the step asked for is the next by construction."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers

    def __call__(self, step: int) -> Batch:
        answer = next(self.answers)
        if isinstance(answer, StepladderError):
            raise answer
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
