"""Assertions of the hidden checks, whose messages tell a learner what is wrong.

A check is a function `check_…(lesson)` whose docstring is the sentence shown to the learner; it
calls the learner's functions and says what is wrong with `expect`. A text that it returns is shown
when it passes. Each mistake that people make is listed in MISTAKES as a replacement in our own
text, so that a test can make it and read the answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .digits import apart
from .finding import Wrong


@dataclass(frozen=True, slots=True)
class Mistake:
    """A common wrong answer, as a change to our solution, and words of the message it gets."""

    name: str  # as the lesson's docstring names it
    right: str
    wrong: str
    says: str


def expect(true: Any, otherwise: str) -> None:
    if not true:
        raise Wrong(otherwise)


def written(value: Any, what: str) -> Any:
    """The value, unless the learner has not written it yet."""
    if value is ... or value is None or value is NotImplemented:
        raise Wrong(f"{what} is not written yet: it gave {value!r}.")
    return value


def expect_close(found: Any, wanted: Any, what: str, *, rtol: float = 1e-5) -> None:
    """Assert that numbers or tensors agree, relative to the largest; exactly for rtol=0."""
    written(found, what)
    mine, theirs = as_tensor(found, what), torch.as_tensor(wanted).detach().double()
    if mine.shape != theirs.shape:
        raise Wrong(f"{what}: the shape is {tuple(mine.shape)}, expected {tuple(theirs.shape)}.")
    if not mine.isfinite().all() and theirs.isfinite().all():
        raise Wrong(f"{what}: not a finite number.")
    error = (mine - theirs).abs()
    if mine.numel() and not error.max().item() <= rtol * theirs.abs().max().item():
        refuse(mine, theirs, what)


def refuse(mine: Tensor, theirs: Tensor, what: str) -> None:
    """Raise what is wrong about numbers of one shape: a factor, or where they differ most."""
    worst = int((mine - theirs).abs().flatten().nan_to_num(math.inf).argmax())
    found, expected = apart(mine.flatten()[worst].item(), theirs.flatten()[worst].item())
    factor = times(mine, theirs)
    if mine.numel() == 1:
        raise Wrong(f"{what}: {found}, expected {expected}{factor}.", found, expected)
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst), mine.shape)]
    where = "" if factor else f"; furthest apart at {index}: {found}, expected {expected}"
    raise Wrong(f"{what}: {shown(mine)}, expected {shown(theirs)}{factor}{where}.", found, expected)


def as_tensor(found: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(found).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"{what}: {type(found).__name__} is not a number or a tensor.") from None


def ratio(found: Any, wanted: Any) -> float:
    """The factor by which all of one tensor is larger than another; nan where there is none."""
    mine, theirs = torch.as_tensor(found).double(), torch.as_tensor(wanted).double()
    if mine.shape != theirs.shape or not theirs.abs().sum():
        return math.nan
    factor = ((mine * theirs).sum() / theirs.square().sum()).item()
    return factor if torch.allclose(mine, factor * theirs, rtol=1e-3, atol=1e-9) else math.nan


def is_times(found: Any, wanted: Any, factor: float) -> bool:
    """Whether the answer is wrong by just this factor."""
    return math.isclose(ratio(found, wanted), factor, rel_tol=1e-3)


def times(mine: Tensor, theirs: Tensor) -> str:
    factor = ratio(mine, theirs)
    if math.isnan(factor) or factor == 0 or math.isclose(factor, 1, rel_tol=1e-2):
        return ""
    if factor > 1:
        return f" ({factor:.4g} × too large)"
    return f" ({1 / factor:.4g} × too small)" if factor > 0 else f" ({factor:.4g} × it)"


def shown(value: Tensor) -> str:
    """The first few numbers."""
    first = ", ".join(f"{number:.4g}" for number in value.flatten()[:3].tolist())
    return f"[{first}{', …' if value.numel() > 3 else ''}]"
