"""What an evaluation found: the loss and the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepladder.errors import DataError, nearest


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """The mean loss of an evaluation and its metrics by name, the same on every rank.

    >>> found = Evaluation(0.5, {"accuracy": 0.75})
    >>> found
    Evaluation(loss=0.5, accuracy=0.75)
    >>> found["accuracy"], float(found)
    (0.75, 0.5)
    """

    loss: float
    metrics: dict[str, Any]  # a float, a tensor, or several of them by name

    def __getitem__(self, name: str) -> Any:
        if name == "loss":
            return self.loss
        if name not in self.metrics:
            remedy = nearest(str(name), ("loss", *self.metrics))
            raise DataError("metrics", f"{name!r} was not evaluated", remedy)
        return self.metrics[name]

    def __float__(self) -> float:
        return self.loss

    def __repr__(self) -> str:
        shown = {"loss": self.loss, **self.metrics}
        return f"Evaluation({', '.join(f'{name}={show(one)}' for name, one in shown.items())})"


def show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
