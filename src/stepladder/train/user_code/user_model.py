"""A user's own model: an nn.Module class of theirs, or a function that makes a module."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.plan.reference import Reference
from stepladder.seam.modules import has_pre_hooks
from stepladder.workload.shape import FAMILIES

from .import_code import call_named, find_function, find_named

FIELD = "model"


def model_reference(text: str) -> Reference | None:
    """Where a model of the user's own is; None for a preset, a shape or a folder."""
    if text.endswith((".py", ".py:")):
        problem = f"'{text}' is a file, and not what makes the module in it"
        raise PlanError(FIELD, problem, f"Write {text.rstrip(':')}:make, with the function's name.")
    return Reference.parse(text, taken=FAMILIES)


def build_user_model(
    reference: Reference,
    *,
    seed: int = 0,
    sequence: int | None = None,
    dropout: float = 0.0,
    weights: str = "",
    packed: bool = False,
) -> nn.Module:
    """Call the named function and return the module it makes, with its own initial values.

    Args:
        sequence: passed if the function has a parameter of that name; so is `dropout`.
        packed: whether the module will read rows of several documents.
    """
    if weights:
        problem = (
            f"'{weights}' is for a model that is a folder, and {reference} gives its own values"
        )
        raise PlanError("model.weights", problem, "Load them in it, or leave this out.")
    if isinstance(find_named(reference, FIELD), nn.Module):
        problem = f"{reference} is a module, and every process makes one for itself"
        raise PlanError(FIELD, problem, "Name a function or a class that makes it.")
    given = arguments(reference, sequence, dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = call_named(reference, FIELD, **given)
    if not isinstance(module, nn.Module):
        problem = f"{reference} returned {type(module).__name__}, not a module"
        raise ModelError(FIELD, problem, "Return a torch.nn.Module.")
    if packed:
        check_takes_documents(reference, module)
    return module


def arguments(reference: Reference, sequence: int | None, dropout: float) -> dict[str, float]:
    """What the function is called with: those of our numbers that it has parameters for."""
    try:
        signature = inspect.signature(find_function(reference, FIELD))
    except ValueError:  # written in C, or a signature of its own making
        return {}
    known = {"sequence": sequence, "dropout": dropout}
    given = {
        name: value
        for name, value in known.items()
        if name in signature.parameters and value is not None
    }
    if dropout and "dropout" not in given:
        remedy = "Give it one, or leave model.dropout out."
        raise PlanError("model.dropout", f"{reference} has no parameter 'dropout'", remedy)
    try:
        signature.bind(**given)
    except TypeError as wanting:
        problem = f"{reference} cannot be called by its name alone ({wanting})"
        remedy = "Give its parameters defaults: only dropout, and a sequence if named, are given."
        raise PlanError(FIELD, problem, remedy) from wanting
    return given


def check_takes_documents(reference: Reference, module: nn.Module) -> None:
    """Refuse packed rows for a module whose forward takes no document numbers."""
    takes = inspect.signature(module.forward).parameters
    open_ended = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    if "documents" not in takes and not open_ended and not has_pre_hooks(module):
        raise PlanError(
            "data.packed",
            f"the forward of {reference} takes no 'documents', by which packed rows are told apart",
            "Give it tokens, documents and positions, or leave data.packed out.",
        )
