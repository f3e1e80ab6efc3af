"""A user's own model as numbers for the planner, traced on one batch of theirs."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from torch import nn

from stepladder.data import Batch, SampleOrder, load_batch
from stepladder.errors import ModelError
from stepladder.model import describe
from stepladder.plan.reference import Reference
from stepladder.train.module_inputs import arranged_sample
from stepladder.workload import Facts

from .user_code import UserCode
from .user_model import build_user_model, model_reference


def trace_user_model(code: UserCode, sequence: int | None = None) -> Facts:
    """What `describe` finds; the module reads one row, or tokens of that sequence length."""
    reference = model_reference(code.model)
    assert reference is not None
    sample = first_row(code)
    module = build_without_values(reference, sequence)
    return describe(module, sequence=sequence, sample=arranged_sample(sample, module, None))


def first_row(code: UserCode) -> Batch | None:
    """A batch of one row; None where the user's code has none."""
    named = code.samples()
    return load_batch(named[0], SampleOrder(len(named[0])), np.arange(1)) if named else None


def build_without_values(reference: Reference, sequence: int | None) -> nn.Module:
    """The module without memory for its parameters; with it where it cannot be made otherwise."""
    with suppress(ModelError), torch.device("meta"):
        return build_user_model(reference, sequence=sequence)
    return build_user_model(reference, sequence=sequence)
