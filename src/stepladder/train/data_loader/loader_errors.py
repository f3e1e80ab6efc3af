"""Errors of a user's data that a DataLoader reads, in one line: which dataset, which sample, what.

The error itself, with its traceback, is the cause of the one that is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from stepladder.errors import DataError, StepladderError
from stepladder.rungs import is_out_of_memory
from stepladder.train.health.loss_errors import frames
from stepladder.train.user_code.import_code import error_line, is_users

WORKER = "Original Traceback"  # in what torch makes of an error in a worker process
PLACE = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>\S+)')
WAY_OUT = (
    "Mend it, or give the dataset to run.batches with ReadPolicy(on_error='skip'), which leaves "
    "such samples out."
)


class ExplainedBatches:
    """The batches of a DataLoader, whose dataset's errors are reported in one line."""

    def __init__(self, batches: Iterable[Any], loader: DataLoader) -> None:
        self.batches, self.loader = batches, loader

    def __iter__(self) -> Iterator[Any]:
        return ExplainedIterator(iter(self.batches), self.loader)  # a loader draws at this moment


class ExplainedIterator(Iterator[Any]):
    def __init__(self, batches: Iterator[Any], loader: DataLoader) -> None:
        self.batches, self.loader = batches, loader

    def __next__(self) -> Any:
        try:
            return next(self.batches)
        except (StopIteration, StepladderError):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise explain_loader(error, self.loader) from error


def explain_loader(error: Exception, loader: DataLoader) -> DataError:
    """What a loader's dataset, or its collate_fn, raised."""
    if WORKER in str(error):
        kind = type(loader.dataset).__name__
        return unread(f"a sample of {kind}", worker_line(str(error)))
    stack = list(frames(error))
    reads = [frame for frame in stack if frame.f_code.co_name == "__getitem__"]
    own = [frame for frame in reads if is_users(frame.f_code.co_filename)]
    if own:
        return unread(sample_of(own[-1]), error_line(error))
    if any("collate" in frame.f_code.co_name for frame in stack):
        problem = f"cannot make a batch of its samples ({error_line(error)})"
        remedy = "Give every sample the same parts and shapes, or the DataLoader a collate_fn."
        return DataError(type(loader.dataset).__name__, problem, remedy)
    return unread(f"a sample of {type(loader.dataset).__name__}", error_line(error))


def unread(sample: str, why: str) -> DataError:
    return DataError(sample, f"cannot be read ({why})", WAY_OUT)


def sample_of(frame: FrameType) -> str:
    """The sample that a dataset's `__getitem__` was asked for."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    given = [frame.f_locals.get(name) for name in names]
    kind = type(given[0]).__name__ if given else "the dataset"
    return f"sample {given[1]} ({kind})" if len(given) > 1 else f"a sample of {kind}"


def worker_line(text: str) -> str:
    """An error's last line in a worker's traceback, and the user's last line that led to it."""
    lines = text.rstrip().splitlines()
    places = [found for line in lines if (found := PLACE.search(line)) and is_users(found["file"])]
    where = f"; {Path(places[-1]['file']).name}:{places[-1]['line']}" if places else ""
    return lines[-1].strip() + where
