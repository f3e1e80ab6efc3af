"""What a piece of a batch weighs in the batch's loss.

A loss that can be computed in pieces is a sum over rows, or such a sum divided by another one: of
rows, of the targets that count, of class weights, of a mask. `Weighting` says which, and gives each
row's part of the divisor, so that pieces are added up by their shares of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from stepladder.data import IGNORED, Batch

Path = tuple[Any, ...]  # ("targets",), ("inputs", "mask"), ("targets", 1)
Kind = Literal["rows", "sum", "values", "total", "positive", "nonzero", "not_nan"]


@dataclass(frozen=True, slots=True)
class Weighting:
    """How the losses of pieces add up to the loss of the whole batch."""

    kind: Kind
    path: Path = ("targets",)  # of the tensor that is counted
    weights: tuple[tuple[int, float], ...] = ()  # of targets by value
    other: float = 1.0  # weight of a target of any other value
    shifted: bool = False  # the first target of each row does not count
    once: bool = False  # a row counts once if any of its targets counts
    measured: bool = False  # what targets weigh was computed from losses, and is rounded
    unless: tuple[int, ...] = ()  # values of targets with which it would be wrong

    @property
    def sums(self) -> bool:
        """Whether pieces are added up as they are."""
        return self.kind == "sum"

    @property
    def counts_targets(self) -> bool:
        """Whether a weight is a number of targets."""
        plain = self.other == 1 and all(weight == 0 for _, weight in self.weights)
        return self.kind == "values" and plain and not self.once

    def by_row(self, batch: Batch) -> tuple[float, ...]:
        """What each row weighs."""
        if self.kind in ("rows", "sum"):
            return (1.0,) * batch.num_rows
        counted = tensor_at(batch, self.path)
        by_row = counted.detach().reshape(len(counted), -1)
        if self.shifted:
            by_row = by_row[:, 1:]
        weighed = self._weigh(by_row).sum(1)
        return tuple(((weighed > 0).double() if self.once else weighed).tolist())

    def _weigh(self, values: Tensor) -> Tensor:
        match self.kind:
            case "total":
                return values.double()
            case "positive":
                return (values > 0).double()
            case "nonzero":
                return (values != 0).double()
            case "not_nan":
                return (~values.isnan()).double()
        found = torch.full(values.shape, self.other, dtype=torch.float64, device=values.device)
        if not self.weights:
            return found
        ordered = sorted(self.weights)
        known = torch.tensor([value for value, _ in ordered], device=values.device)
        weight = torch.tensor([w for _, w in ordered], dtype=torch.float64, device=values.device)
        place = torch.searchsorted(known, values.long().contiguous()).clamp(max=len(known) - 1)
        return torch.where(known[place] == values, weight[place], found)


BY_TARGETS = Weighting("values", weights=((IGNORED, 0.0),))
BY_SHIFTED_TARGETS = Weighting("values", weights=((IGNORED, 0.0),), shifted=True)


def by_class(weights: Mapping[int, float], **where: Any) -> Weighting:
    """By the value of each target; values that are not named have the same weight as most."""
    by_value = {value: weight for value, weight in weights.items() if weight != 1}
    return Weighting("values", weights=tuple(sorted(by_value.items())), **where)


def weighting_events(weighting: Weighting | None, untried: str) -> list[str]:
    """What to say of a weighting that was not found, or is not right for every batch."""
    if untried:
        return [
            f"loss: could not be tried in pieces ({untried}), so pieces of a batch are weighted by "
            "their targets other than -100; compare with `verify parity`"
        ]
    if weighting is None or not weighting.unless:
        return []
    return [
        "loss: is cut into pieces, because every target counts; a batch with a target of "
        f"{' or '.join(map(str, weighting.unless))} will be refused"
    ]


def tensors_of(batch: Batch) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor with one entry a row, and where it is; one that is twice there comes once."""
    seen: set[int] = set()
    for path, tensor in (*walk(batch.targets, ("targets",)), *walk(batch.inputs, ("inputs",))):
        if id(tensor) not in seen and tensor.dim() and len(tensor) == batch.num_rows:
            seen.add(id(tensor))
            yield path, tensor


def walk(value: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (dict, tuple, list)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from walk(part, (*path, key))


def tensor_at(batch: Batch, path: Path) -> Tensor:
    value = getattr(batch, path[0])
    for key in path[1:]:
        value = value[key]
    return value
