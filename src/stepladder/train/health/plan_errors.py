"""Errors of torch in a step in one line with the way out, where they follow from the plan.

An error in the user's own code keeps its traceback. These would not come up in a plain loop over
whole batches in float32: it is the plan that asks for what the module cannot do.
"""

from __future__ import annotations

import re
from typing import NoReturn

import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import DataError, PlanError
from stepladder.plan import Plan
from stepladder.rungs.data_parallel.batch_norm import lacks_rows, one_row
from stepladder.train.health.batch_errors import explain_batch
from stepladder.world.device_mismatch import explain_placement
from stepladder.world.mixed_devices import explain_mixed_devices

NO_CLASS = r"Target (-?\d+) is out of bounds"
NOT_DETERMINISTIC = r"(\S+) does not have a deterministic implementation"
OTHER_TYPE = ("dtype", "scalar type", "same type")
INTEGERS = re.compile(r"\b(Long|Int|Byte)\b")  # asked for or given: no precision stores them


def raise_explained(
    error: Exception,
    module: nn.Module,
    plan: Plan,
    batch: Batch,
    micro: int | None,
    device: torch.device,
    *,
    narrows: bool,
) -> NoReturn:
    """Raise in one line that a tensor is misplaced or the plan asks too much, else the error.

    Args:
        narrows: the module was given in float64.
    """
    rows = min(micro or batch.num_rows, batch.num_rows)
    if isinstance(error, IndexError) and (named := re.search(NO_CLASS, str(error))):
        raise DataError(
            "batch",
            f"target {named[1]} is out of bounds: the loss has fewer classes",
            "Count classes from 0, give the module's last layer one output for each, and mark "
            "targets to be left out with -100.",
        ) from error
    misplaced = explain_placement(module, batch.inputs, device)
    misplaced = misplaced or explain_mixed_devices(error, module, device)
    if narrows and isinstance(error, RuntimeError) and "Double" in str(error):
        raise still_wide(module, error) from error
    of_plan = misplaced or explain_plan(module, plan, error, rows, device)
    if found := of_plan or explain_batch(error, module, batch):
        raise found from error
    raise error


def still_wide(module: nn.Module, error: Exception) -> PlanError:
    return PlanError(
        "precision",
        f"{type(module).__name__} is given in float64, which no plan stores; its parameters and "
        f"batches are float32 now, and a tensor that its forward or the loss holds is not "
        f"({str(error).splitlines()[0]})",
        "Make that tensor a buffer of the module or of a loss module, or cast it with .float().",
    )


def explain_plan(
    module: nn.Module, plan: Plan, error: Exception, rows: int, device: torch.device
) -> PlanError | None:
    """What in the plan an error follows from; None for any other.

    Args:
        rows: of a micro-batch.
    """
    line = (str(error).strip() or "no reason given").splitlines()[0]
    if rows == 1 and lacks_rows(error):
        return one_row()
    if plan.exact.runs and (named := re.search(NOT_DETERMINISTIC, line)):
        return PlanError(
            "exact",
            f"{named[1]}, which {type(module).__name__} uses, has no deterministic implementation "
            f"on {device.type} in torch {torch.__version__}",
            "Use another operation, or leave exact out.",
        )
    mixed = isinstance(error, RuntimeError) and plan.precision.mixed
    if mixed and any(word in line for word in OTHER_TYPE) and not INTEGERS.search(line):
        return PlanError(
            "precision",
            f"{type(module).__name__} mixes types under {plan.precision} ({line})",
            "Cast in its forward to the type of what it combines, keep=NAME that part in fp32, or "
            "use fp32.",
        )
    return None
