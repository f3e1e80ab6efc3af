"""Mixtures: several sources read as one, in proportions that hold for every prefix of the run.

A mixture is its sources concatenated, plus an order that picks among them. Which source comes at
which position is a schedule fixed by the weights alone: after any number of samples each source has
been drawn within one sample of its share. Each source is read in its own order and begins its own
new epoch when it is used up, so a small source with a large weight repeats without affecting the
others.

The schedule serves the draw whose deadline comes first among those already due (proportionate
fairness: Baruah, Cohen, Plaxton and Varvel 1996). It repeats after one period, so a lookup is
arithmetic and a resumed run needs only its position. Drawing sources at random was not used: shares
then wander by the square root of the position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
import torch

from stepladder.errors import DataError

from .collate import concatenate_stacked
from .sample_order import Integers
from .source import Source, as_source, order_of

LONGEST_PERIOD = 100_000  # finer weights than this are rounded to it


class Mixture:
    """Several sources as one, drawn by weight."""

    def __init__(self, sources: Sequence[Any], weights: Sequence[float]) -> None:
        if len(sources) != len(weights) or not sources:
            raise DataError(
                "mix.weights",
                f"{len(sources)} sources and {len(weights)} weights",
                "Give one weight for each source.",
            )
        self.sources: tuple[Source, ...] = tuple(as_source(source) for source in sources)
        self.draws = draws_per_period(weights)
        self.ends = np.cumsum([len(source) for source in self.sources])
        self._schedule = interleave(self.draws)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights in effect: those given, normalised and rounded to the schedule's period."""
        return tuple(draws / sum(self.draws) for draws in self.draws)

    def __getattr__(self, name: str) -> Any:
        # The window length that all sources share, so that a length schedule can shorten it.
        lengths = {getattr(source, "length", None) for source in vars(self).get("sources", ())}
        if name == "length" and len(lengths) == 1 and None not in lengths:
            return lengths.pop()
        raise AttributeError(name)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)  # a for loop over a sequence ends on this
        number, inner = self._find(index)
        return self.sources[number][inner]

    def fetch(self, indices: Integers) -> Any:
        """Many samples at once, if every source can and their samples have one structure."""
        numbers = self.ends.searchsorted(indices, side="right")
        drawn = np.unique(numbers).tolist()
        parts = []
        for number in drawn:
            fetch = getattr(self.sources[number], "fetch", None)
            inner = indices[numbers == number] - (self.ends[number - 1] if number else 0)
            found = fetch(inner) if fetch else None
            if found is None:
                return None
            parts.append(found)
        places = np.concatenate([np.flatnonzero(numbers == number) for number in drawn])
        return concatenate_stacked(parts, torch.from_numpy(np.argsort(places)))

    def where(self, index: int) -> str:
        number, inner = self._find(index)
        inner_where = getattr(self.sources[number], "where", None)
        return inner_where(inner) if inner_where else f"sample {inner} of source {number}"

    def order(self, seed: int, shuffle: bool) -> MixtureOrder:
        """Each source in its own order, interleaved by the schedule."""
        walks = tuple(
            order_of(source, seed + number, shuffle) for number, source in enumerate(self.sources)
        )
        return MixtureOrder(walks, tuple(self.draws), self.ends, *self._schedule)

    def _find(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self.ends, index, side="right"))
        return number, int(index) - int(self.ends[number - 1] if number else 0)


@dataclass(frozen=True, slots=True, eq=False)
class MixtureOrder:
    """Which index of the mixture stands at each position."""

    walks: tuple[Any, ...]
    draws: tuple[int, ...]  # of each source in one period
    ends: np.ndarray
    chosen: np.ndarray  # the source at each place of a period
    earlier: np.ndarray  # draws of that source before that place in its period

    def indices(self, positions: Integers) -> Integers:
        periods, places = np.divmod(np.asarray(positions, np.int64), len(self.chosen))
        chosen, found = self.chosen[places], np.empty(len(places), np.int64)
        for number, walk in enumerate(self.walks):
            here = chosen == number
            inner = periods[here] * self.draws[number] + self.earlier[places[here]]
            found[here] = walk.indices(inner) + (self.ends[number - 1] if number else 0)
        return found


def draws_per_period(weights: Sequence[float]) -> list[int]:
    """Draws of each source in one period: exact for weights that are simple fractions."""
    for weight in weights:
        if not (isinstance(weight, Real) and math.isfinite(weight) and weight > 0):
            raise DataError(
                "mix.weights",
                f"{weight} is not a share",
                "Use positive numbers; leave a source out for 0.",
            )
    total = math.fsum(weights)
    shares = [Fraction(weight / total).limit_denominator(1000) for weight in weights]
    period = math.lcm(*(share.denominator for share in shares))
    if sum(shares) != 1 or period > LONGEST_PERIOD or not all(shares):
        shares = _rounded([weight / total for weight in weights])
        period = LONGEST_PERIOD
    draws = [int(share * period) for share in shares]
    common = math.gcd(*draws)
    return [count // common for count in draws]


def _rounded(shares: Sequence[float]) -> list[Fraction]:
    """Shares in whole parts of the longest period, the largest remainders rounded up."""
    if min(shares) * LONGEST_PERIOD < 1:
        raise DataError(
            "mix.weights",
            f"a share of {min(shares):.2g} is less than one sample in {LONGEST_PERIOD}",
            "Leave that source out or raise its weight.",
        )
    parts = [int(share * LONGEST_PERIOD) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda k: parts[k] - shares[k] * LONGEST_PERIOD)
    for number in by_remainder[: LONGEST_PERIOD - sum(parts)]:
        parts[number] += 1
    return [Fraction(part, LONGEST_PERIOD) for part in parts]


def interleave(draws: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """One period of the schedule: the source at each place, and its draws so far."""
    period, done = sum(draws), [0] * len(draws)
    chosen, earlier = np.empty(period, np.int64), np.empty(period, np.int64)
    for place in range(period):
        due = [k for k, count in enumerate(draws) if done[k] * period < (place + 1) * count]
        first = min(due, key=lambda k: -(-(done[k] + 1) * period // draws[k]))
        chosen[place], earlier[place] = first, done[first]
        done[first] += 1
    return chosen, earlier
