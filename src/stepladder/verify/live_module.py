"""The caller's own module, batch and loss as a subject: every rank is given a copy of its own.

The module itself is left alone: what is trained is a copy, on the CPU until a run moves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError, WorldError, require_type
from stepladder.loss import make_loss
from stepladder.model import copy_module
from stepladder.plan import BatchSplit, Plan
from stepladder.train.user_code.batch_as_source import Rows, rows_of
from stepladder.world import Place

from .course import laid_out
from .subjects import Made, Subject, find_subject

Model = nn.Module | Callable[[], nn.Module] | str
Loss = str | Callable[[Any, Any], torch.Tensor] | None


def live_subject(model: Model, batch: Any, loss: Loss, *, dropout: bool = False) -> Subject:
    """What a proof trains: the caller's module on the caller's batch, or a built-in model.

    Args:
        model: a module; a function that makes one; or text, as `stepladder verify` takes.
        batch: as `run.step` takes it; None for text: samples of the model's own.
        dropout: left on.
    """
    refuse_inside_a_rank()
    if not callable(model) and not isinstance(model, str):
        problem = f"a {type(model).__name__} is neither a module nor a name of one"
        raise ModelError("model", problem, "Give a module, a function that makes one, or a name.")
    if isinstance(loss, str):
        make_loss(loss, nn.Identity())  # an unknown name is refused before any rank is started
    if isinstance(model, str):
        found = find_subject(model, samples=None if batch is None else rows_of(batch))
        return replace(found, dropout=dropout)
    if batch is None:
        raise ModelError(
            "batch", "a module of your own is proved on a batch and none was given", "Pass batch=."
        )
    if isinstance(model, nn.Module):
        kept = copy_module(model).cpu()
        return Subject(
            type(model).__name__, partial(make_copy, kept, rows_of(batch), loss), dropout
        )
    name = getattr(model, "__name__", type(model).__name__)
    return Subject(name, partial(make_anew, model, rows_of(batch), loss), dropout)


def refuse_inside_a_rank() -> None:
    place = Place.from_environment()
    if place.launched:
        raise WorldError(
            "verify",
            f"starts ranks of its own, and this process is rank {place.rank} of {place.num_ranks}",
            "Call it in a process that no launcher started.",
        )


def make_copy(module: nn.Module, rows: Rows, loss: Loss) -> Made:
    return copy_module(module), rows, loss


def make_anew(make: Callable[[], nn.Module], rows: Rows, loss: Loss) -> Made:
    module = make()
    if not isinstance(module, nn.Module):
        problem = f"its function returned a {type(module).__name__}, not a module"
        raise ModelError("model", problem, "Return a torch.nn.Module from it.")
    return module, rows, loss


def read_plans(plans: str | Plan | Sequence[str | Plan], *, least: int = 1) -> list[Plan]:
    """Plans from one, several, or text with semicolons between them."""
    several = plans.split(";") if isinstance(plans, str) else plans
    each = [several] if isinstance(several, Plan) else several
    require_type("plans", each, (list, tuple), "Write 'zero3 shard=2; tensor=2', or give a list.")
    if len(each) < least:
        raise PlanError("plans", "an empty list has nothing to compare", "Give one plan or more.")
    for plan in each:
        require_type("plans", plan, (str, Plan), "Write each as words, or give a Plan.")
    return [Plan.parse(plan) if isinstance(plan, str) else plan for plan in each]


def fit_rows(plans: Sequence[Plan], rows: int, *, cut: bool = True) -> list[Plan]:
    """The plans with a global batch of about so many rows.

    What a plan says of its batch itself stays.

    Args:
        cut: into at least two micro-batches a rank; else only where a pipeline needs them.
    """
    spread = [replace(plan, layout=laid_out(plan.layout)) for plan in plans]
    ways = [plan.layout.data_ranks for plan in spread]
    stages = max(plan.layout.pipeline for plan in spread)
    micro_batches = 2 * stages if cut or stages > 1 else 1
    micro = max(1, rows // (max(ways) * micro_batches))
    fits = math.lcm(*(micro * way for way in ways))
    batch = BatchSplit(max(fits, rows // fits * fits), micro)
    return [plan if plan.batch != BatchSplit() else replace(plan, batch=batch) for plan in plans]
