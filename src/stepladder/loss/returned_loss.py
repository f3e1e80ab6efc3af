"""What a loss returned: one number, or terms by name; anything else is refused with its way out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from stepladder.errors import ModelError

TERM = re.compile(r"[A-Za-z0-9_.-]{1,80}")  # what every tracker takes
TOTAL = re.compile(r"total|^(loss|sum)$", re.IGNORECASE)  # which would be counted twice


def one_number(field: str, found: Any) -> torch.Tensor:
    if isinstance(found, torch.Tensor) and found.numel() == 1:
        return found.reshape(())
    if isinstance(found, Real) and (found or field == "loss"):  # a term of 0 was computed nowhere
        raise ModelError(
            field,
            f"returned a {type(found).__name__}, which has no gradient",
            "Return the tensor that it was read from: leave out .item() or float().",
        )
    if field != "loss" and (found is None or isinstance(found, Real)):
        remedy = "Return a tensor, such as outputs.new_zeros(())."
        raise ModelError(field, f"returned {describe(found)}, not a tensor", remedy)
    raise ModelError(field, f"returned {describe(found)}, not one number", way_out(found))


def way_out(found: Any) -> str:
    """What to return instead of something that is no number."""
    if isinstance(found, torch.Tensor):
        return "Reduce it with .mean()."
    if found is None:
        return "Add a return to it."
    if isinstance(found, tuple | list):
        return "Return the loss alone, or a dict of terms, which are added up to it."
    return "Return a tensor that torch computed."


def read_terms(found: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    """The terms by name, each one number."""
    if not found:
        raise ModelError("loss", "returned no terms", "Return at least one, or a number.")
    for name in found:
        if not isinstance(name, str) or not TERM.fullmatch(name) or TOTAL.search(name):
            raise ModelError(
                "loss",
                f"returned a term called {name!r}, and terms are added up to the loss",
                "Leave a total out; use letters, digits and _ . - in a term's name.",
            )
    terms = {name: one_number(f"loss.{name}", term) for name, term in found.items()}
    return {
        name: term.to(torch.promote_types(term.dtype, torch.float32))
        for name, term in terms.items()
    }


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None:
        return "none"
    return f"a {type(value).__name__}"
