"""What a training loop logs by a name of its own: checked, before it is kept or written."""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Any

from torch import Tensor

from stepladder.errors import RecordError

NAME = re.compile(r"[A-Za-z0-9_./ -]{1,100}")  # what every tracker takes
AXIS = "step"  # what trackers draw values over


def check_name(name: Any) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name) or name == AXIS:
        raise RecordError(
            "log",
            f"{name!r} is not a name that every tracker takes",
            f"Use up to 100 letters, digits, spaces and _ . / -, and not '{AXIS}'.",
        )


def check_step(name: str, step: Any) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise RecordError(
            f"log.{name}",
            f"{step!r} is not the number of a step",
            "Use 0 or more, or leave it out.",
        )


def read_number(name: str, value: Any) -> float:
    """A number, or a tensor of one element, as a float."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise RecordError(
            f"log.{name}",
            f"a {type(value).__name__}{shape} is not one number",
            "Log a number or a tensor of one element; several have a name each.",
        )
    number = float(value)
    if not math.isfinite(number):
        raise RecordError(
            f"log.{name}",
            f"{number} cannot be drawn, only finite numbers can",
            "Log it only where math.isfinite(value).",
        )
    return number
