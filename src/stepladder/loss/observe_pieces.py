"""A loss of some rows at once and in pieces, on their own targets and on altered ones.

The first batch of a run rarely shows what a loss leaves out: later ones bring padding, or classes
that this one lacks. So targets are also shuffled, and values that may be left out are put into
some rows more often than into others. A loss that refuses a value never meets it in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from stepladder.data import IGNORED, Batch

from .weighting import Path, Weighting, tensors_of

Value = Callable[[Batch], float]  # the loss of these rows; not a number where there is none

OFTEN_IGNORED = (IGNORED, -1, 255)  # no class, and left out by many losses
MOST_DRAWS = 4  # of targets from the classes there are
MOST_VALUES = 4  # of those in the targets that are tried as ignored
RELATIVE = 1e-5  # of how far pieces' losses lie apart, which a weighting may be off
ROUNDINGS = 16.0  # units in the last place by which the same loss may differ


@dataclass(frozen=True, slots=True)
class Observation:
    """The loss of rows at once, and of the same rows in pieces."""

    batch: Batch
    sizes: tuple[int, ...]  # of the pieces, in rows
    whole: float
    values: tuple[float, ...]
    noise: float = 0.0  # by how much the order of rows changes the loss, relative to it
    weighed: dict[Weighting, list[float]] = field(default_factory=dict, compare=False)  # pieces

    def combined(self, weighting: Weighting) -> float:
        """The whole's loss from the pieces'; not a number where nothing counts."""
        if weighting.sums:
            return sum(self.values)
        if weighting not in self.weighed:
            by_row = iter(weighting.by_row(self.batch))
            self.weighed[weighting] = [sum(islice(by_row, size)) for size in self.sizes]
        weights = self.weighed[weighting]
        total = sum(weights)
        if not total > 0 or min(weights) < 0:
            return math.nan
        # A mean over nothing is no number, and none of the whole.
        return sum(w / total * value for w, value in zip(weights, self.values) if w)

    def error(self, weighting: Weighting) -> float:
        """How far the pieces are from the whole, relative to it."""
        off = abs(self.combined(weighting) - self.whole) / (abs(self.whole) or 1.0)
        return off if math.isfinite(off) else math.inf

    def fits(self, weighting: Weighting, epsilon: float) -> bool:
        if not math.isfinite(self.whole):
            return True  # says nothing
        found = self.combined(weighting)
        if not math.isfinite(found):
            return self.whole == 0  # nothing counts, on either side
        apart = max((abs(v - self.whole) for v in self.values if math.isfinite(v)), default=0.0)
        rounding = ROUNDINGS * epsilon * max(abs(self.whole), apart)
        # Rows in another order show the rounding, or that the order matters: then no more than 1 %.
        noise = min(4 * self.noise * abs(self.whole), 1e-2 * apart)
        return abs(found - self.whole) <= RELATIVE * apart + rounding + noise


def observe(value: Value, batch: Batch, sizes: Sequence[int], noise: float = 0.0) -> Observation:
    """The loss of a batch, and of its rows in pieces of these sizes."""
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    parts = tuple(batch.rows(slice(end - size, end)) for end, size in zip(ends, sizes))
    whole, values = value(batch), tuple(value(part) for part in parts)
    return Observation(batch, tuple(sizes), whole, values, noise)


def measure_noise(value: Value, batch: Batch) -> float:
    """By how much the order of rows changes the loss, relative to it: by rounding, as a rule."""
    one, other = value(batch), value(batch.pick(torch.arange(batch.num_rows).flip(0)))
    return abs(other - one) / abs(one) if one and math.isfinite(one + other) else 0.0


def altered(
    batch: Batch, draw: torch.Generator, classes: Sequence[int], outside: Sequence[int]
) -> Iterator[Batch]:
    """The batch with other targets, one kind of change at a time.

    Args:
        classes: values that targets may have, those first that may weigh differently.
        outside: values to put among targets that need not be classes.
    """
    for path, tensor in tensors_of(batch):
        alone = path == ("targets",)
        if path[0] == "targets" and is_classes(tensor):
            mixed = tensor
            for first in range(0, len(classes) if alone else 0, len(tensor))[:MOST_DRAWS]:
                mixed = drawn(tensor, classes[first : first + 2 * len(tensor)], draw)
                yield batch.exchange(tensor, mixed)
            for value in values_to_ignore(tensor, outside if alone else ()):
                for other in scattered(mixed, value, draw):
                    yield batch.exchange(tensor, other)
        elif is_mask(tensor) or (path[0] == "targets" and tensor.is_floating_point()):
            for nothing in (0.0, math.nan) if tensor.is_floating_point() else (0.0,):
                for other in scattered(tensor, nothing, draw):
                    yield batch.exchange(tensor, other)


def is_classes(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def is_mask(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bool or bool(((tensor == 0) | (tensor == 1)).all())


def values_to_ignore(targets: Tensor, outside: Sequence[int] = OFTEN_IGNORED) -> list[int]:
    """Values that a loss may leave out: those there are most of, the last class, those given."""
    found, counts = targets.unique(return_counts=True)
    frequent = found[counts.argsort(descending=True)][:MOST_VALUES].tolist()
    first = [0] if outside and int(found.min()) >= 0 else []
    limits = torch.iinfo(targets.dtype)
    given = [value for value in outside if limits.min <= value <= limits.max]
    return list(dict.fromkeys([*frequent, int(found.max()), *first, *given]))


def drawn(targets: Tensor, classes: Sequence[int], draw: torch.Generator) -> Tensor:
    """Targets of these classes, each at least once where there is room."""
    chosen = torch.randint(len(classes), (targets.numel(),), generator=draw)
    known = min(len(classes), targets.numel())
    chosen[torch.randperm(targets.numel(), generator=draw)[:known]] = torch.arange(known)
    values = torch.tensor(classes, dtype=targets.dtype)[chosen]
    return values.view(targets.shape).to(targets.device)


def scattered(tensor: Tensor, value: float, draw: torch.Generator) -> Iterator[Tensor]:
    """The tensor with a value put into a growing part of each row; then, in all of two rows too."""
    rows = len(tensor)
    if tensor.dim() == 1:  # one entry a row
        chosen = torch.arange(rows) % 3 == 0
    else:
        share = torch.arange(rows).view(-1, *[1] * (tensor.dim() - 1)) / rows
        chosen = torch.rand(tensor.shape, generator=draw) < share
    yield tensor.masked_fill(chosen.to(tensor.device), value)
    chosen[:2] = True  # a piece without any other
    yield tensor.masked_fill(chosen.to(tensor.device), value)


def paths_of_classes(batch: Batch) -> list[Path]:
    return [path for path, tensor in tensors_of(batch) if is_classes(tensor)]
