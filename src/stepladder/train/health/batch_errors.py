"""Errors of a layer that was given a batch it does not take, in one line.

An error in the user's own forward or loss keeps its traceback, which says where. Where no line of
theirs was reached (a module made of torch's or a package's own parts), a traceback shows only code
that nobody here wrote: the batch is at fault, and the line says which layer refused what.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from stepladder.data import Batch, iter_tensors
from stepladder.errors import DataError, StepladderError, first_line
from stepladder.train.user_code.import_code import is_users

OURS = str(Path(__file__).parents[2])  # an error of ours is not the batch's either
COMMUNICATION = str(Path(torch.__file__).parent / "distributed")  # whose errors are not the batch's


def explain_batch(error: Exception, module: nn.Module, batch: Batch) -> DataError | None:
    """The layer that does not take the batch; None where something else went wrong."""
    if isinstance(error, StepladderError):
        return None
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    layer = next(reversed(list(layers(error))), None)
    if layer is None or files[-1].startswith(OURS):
        return None
    if any(is_users(file) or file.startswith(COMMUNICATION) for file in files):
        return None
    name = next((name for name, part in module.named_modules() if part is layer and name), "")
    where = f"'{name}' of {type(module).__name__}" if name else type(module).__name__
    given = " and ".join(map(shown, iter_tensors(batch.inputs)))
    return DataError(
        "batch",
        f"{where} does not take its inputs, {given} ({type(error).__name__}: {first_line(error)})",
        "Give tensors of the shape and type that the module's forward takes.",
    )


def layers(error: Exception) -> Iterator[nn.Module]:
    """The modules whose calls an error came through, outermost first."""
    for frame in frames(error):
        found = frame.f_locals.get("self")
        if isinstance(found, nn.Module):
            yield found


def frames(error: Exception) -> Iterator[FrameType]:
    at = error.__traceback__
    while at is not None:
        yield at.tb_frame
        at = at.tb_next


def shown(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
