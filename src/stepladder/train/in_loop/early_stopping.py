"""Early stopping: end a loop once a value has not improved for a while."""

from __future__ import annotations

import math
from typing import Any

from stepladder.errors import PlanError

from .mode import check_mode, is_better, read_value


class EarlyStopping:
    """Answers True once a value has not improved `patience` times in a row.

    Give every rank the same values, as `run.evaluate` returns them, so that all stop together. NaN
    is no improvement. `run.register_for_checkpointing("early_stopping", stop)` saves and restores
    it with the run.

    Args:
        patience: values in a row without improvement that end the loop.
        mode: "min" if lower values are better, such as losses; "max" if higher ones are.
        min_delta: by how much a value must be better than the best so far to be an improvement.

    >>> from stepladder.train import EarlyStopping
    >>> stop = EarlyStopping(patience=2)
    >>> [stop(loss) for loss in (0.5, 0.4, 0.45, float("nan"))]
    [False, False, False, True]
    >>> stop.best
    0.4
    """

    def __init__(self, patience: int = 5, mode: str = "min", min_delta: float = 0.0) -> None:
        if type(patience) is not int or patience < 1:
            problem = f"{patience!r} is not a number of values to wait for"
            raise PlanError("patience", problem, "Use 1 or more.")
        if not isinstance(min_delta, int | float) or not 0 <= min_delta < math.inf:
            problem = f"{min_delta!r} is not a difference between two values"
            raise PlanError("min_delta", problem, "Use 0 or more.")
        self.patience, self.mode, self.min_delta = patience, check_mode(mode), min_delta
        self.best: float | None = None  # so far
        self.waited = 0  # values since then

    def __call__(self, value: float) -> bool:
        """Note a value; True if it is time to stop."""
        number = read_value(value)
        if is_better(number, self.best, self.mode, self.min_delta):
            self.best, self.waited = number, 0
        else:
            self.waited += 1
        return self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"mode": self.mode, "best": self.best, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["mode"] != self.mode:
            problem = f"'{state_dict['mode']}' when it was saved, and '{self.mode}' now"
            raise PlanError("early stopping", f"its mode was {problem}", "Use the same mode.")
        self.best, self.waited = state_dict["best"], state_dict["waited"]
