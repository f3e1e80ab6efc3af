"""Errors of a layer that was given a batch it does not take, in one line.

An error in the user's own forward keeps its traceback, which says where. Where no line of theirs
was reached (a module made of torch's or a package's own parts), a traceback shows only code that
nobody here wrote: the batch is at fault, and the line says which layer, or which loss, refused
what.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from stepladder.data import Batch, iter_tensors
from stepladder.errors import DataError, StepladderError, first_line
from stepladder.rungs import is_out_of_memory
from stepladder.train.health.loss_errors import COMMUNICATION, OURS, explain_loss, frames, shown
from stepladder.train.user_code.import_code import is_users


def explain_batch(error: Exception, module: nn.Module, batch: Batch) -> DataError | None:
    """The layer or loss that does not take the batch; None where something else went wrong."""
    if isinstance(error, StepladderError) or is_out_of_memory(error):
        return None
    if refused := explain_loss(error, batch):
        return refused
    files = [frame.f_code.co_filename for frame in frames(error)]
    running, parts = list(layers(error)), set(module.modules())
    if parts.isdisjoint(running) or files[-1].startswith(OURS):  # a loss, or a metric
        return None
    if any(is_users(file) or file.startswith(COMMUNICATION) for file in files):
        return None
    layer = running[-1]
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
