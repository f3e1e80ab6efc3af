"""Errors of a loss that was given outputs and targets it does not take, in one line.

Every loss is called in one place, whose frame holds what it was given. The line names the loss, not
the module, which has answered by then. What a loss of the user's raises itself says what it has to
say, and keeps its traceback.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dis import opmap
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from stepladder.data import Batch
from stepladder.data.batch import TARGET_KEYS
from stepladder.errors import DataError, first_line, nearest
from stepladder.loss import Loss
from stepladder.rungs.output_tensors import tensors_in
from stepladder.train.user_code.import_code import error_line, is_users

OURS = str(Path(__file__).parents[2])
COMMUNICATION = str(Path(torch.__file__).parent / "distributed")  # whose errors are not the batch's
OF_SHAPES = (TypeError, RuntimeError, ValueError, IndexError)
SHOWN = 3  # tensors of outputs that are many


def explain_loss(error: Exception, batch: Batch) -> DataError | None:
    """The loss that does not take what it was given; None where something else went wrong."""
    stack = list(frames(error))
    call = next((frame for frame in stack if frame.f_code is Loss.split.__code__), None)
    if call is None or is_not_of_shapes(error, stack, call):
        return None
    function, outputs, targets = (
        call.f_locals["self"].function, call.f_locals["outputs"], call.f_locals["targets"]
    )  # fmt: skip
    function = function.func if isinstance(function, partial) else function
    name = getattr(function, "__name__", type(function).__name__)
    theirs = any(is_users(frame.f_code.co_filename) for frame in stack)
    why = error_line(error) if theirs else f"{type(error).__name__}: {first_line(error)}"
    if targets is None and "None" in str(error):
        return DataError(
            "targets",
            f"the batch has none, and {name} was given None ({why})",
            "Give pairs (inputs, targets); for an autoencoder (x, x), as TensorDataset(x, x) has "
            "them.",
        )
    if is_whole(targets, batch) and ("dict" in str(error) or isinstance(error, KeyError)):
        return DataError(
            "targets",
            f"the batch has no 'labels' or 'targets', and {name} was given all of it, "
            f"{', '.join(map(repr, targets))} ({why})",
            remedy_for_dict(error, targets, batch),
        )
    if not isinstance(error, OF_SHAPES) and not lacks_tensor(error, outputs, targets):
        return None
    return DataError(
        "loss",
        f"{name} does not take outputs of {described(outputs)} with targets of "
        f"{described(targets)} ({why})",
        remedy_for(error, outputs, targets),
    )


def is_not_of_shapes(error: Exception, stack: list[FrameType], call: FrameType) -> bool:
    """Whether an error was raised by the user's own line, by ours, or between processes."""
    files = [frame.f_code.co_filename for frame in stack]
    ours = files[-1].startswith(OURS) and stack[-1] is not call
    between = any(file.startswith(COMMUNICATION) for file in files)
    return ours or between or "CUDA error" in str(error) or is_raised_by_user(error)


def is_raised_by_user(error: Exception) -> bool:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None or not is_users(at.tb_frame.f_code.co_filename):
        return False
    return at.tb_frame.f_code.co_code[at.tb_lasti] == opmap["RAISE_VARARGS"]


def is_whole(targets: Any, batch: Batch) -> bool:
    """Whether the loss was given a whole dict, because it has no labels."""
    if not isinstance(targets, dict) or any(key in targets for key in TARGET_KEYS):
        return False
    inputs = batch.inputs[0] if isinstance(batch.inputs, tuple) else batch.inputs
    return isinstance(inputs, dict) and inputs.keys() <= targets.keys()


def remedy_for_dict(error: Exception, targets: dict[str, Any], batch: Batch) -> str:
    if isinstance(error, KeyError):
        return nearest(missing_key(error), map(str, targets))
    given = batch.inputs if isinstance(batch.inputs, dict) else targets
    left = [name for name in targets if name not in given]
    if not left:
        return "Add them under 'labels', or give pairs (inputs, targets)."
    return f"Call '{left[0]}' 'labels', or have the loss take targets['{left[0]}']."


def lacks_tensor(error: Exception, outputs: Any, targets: Any) -> bool:
    """Whether a loss took for a tensor, or for a dict with an entry, what is none."""
    if isinstance(error, AttributeError):
        return any(error.obj is given for given in (outputs, targets))
    return isinstance(error, KeyError) and any(
        isinstance(one, Mapping) for one in (outputs, targets)
    )


def missing_key(error: KeyError) -> str:
    return str(error.args[0]) if error.args else ""


def remedy_for(error: Exception, outputs: Any, targets: Any) -> str:
    if isinstance(error, KeyError):
        return nearest(
            missing_key(error), map(str, outputs if isinstance(outputs, Mapping) else targets)
        )
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor | None):
        return "Pass a function: loss=lambda outputs, targets: ..., which picks what it compares."
    check = "Give targets of the shape and type that it takes, or a function of (outputs, targets)."
    if targets is None:
        return check
    if targets.is_floating_point() and "Long" in str(error):
        return "Give classes as integers: targets.long()."
    if not targets.is_floating_point() and "Float" in str(error):
        return "Give targets.float()."
    if outputs.dim() == targets.dim() > 0 and outputs.shape[:-1] == targets.shape[:-1]:
        has, wants = outputs.shape[-1], targets.shape[-1]
        if wants == 1 != has and not targets.is_floating_point():
            return "Give targets.squeeze(-1)."
        if wants != has and targets.is_floating_point():
            return f"Have the module's last layer be {wants} wide, or the targets {has}."
    return check


def described(value: Any) -> str:
    """The tensors of outputs or targets."""
    if isinstance(value, Tensor):
        return shown(value)
    found = list(map(shown, tensors_in(value)))
    if not found:
        return "None" if value is None else f"a {type(value).__name__}"
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"a {type(value).__name__} of {' and '.join(found[:SHOWN])}{more}"


def frames(error: Exception) -> Iterator[FrameType]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield frame


def shown(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
