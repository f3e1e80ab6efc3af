"""Whether two precisions train the same: two runs, one verdict.

What counts is the loss on data neither run has seen. Two runs of the same precision with another
order of summing differ by some tenths of a percent, so under 1 % is fine; over 5 % no later step
makes good. Between the two a person should look, at the curves or at a longer run.

Training is the caller's: `compare` is given a function of the precision and nothing else, so both
runs get the same model, data and steps by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stepladder.errors import NonFinite
from stepladder.plan import Precision

FINE, BAD = 0.01, 0.05  # relative difference of validation losses


@dataclass(frozen=True, slots=True)
class Trained:
    """What one run came to."""

    validation_loss: float
    losses: tuple[float, ...]  # on the training data, by step


@dataclass(frozen=True, slots=True)
class Verdict:
    difference: float  # relative to the reference; above zero is worse
    word: Literal["fine", "look", "bad"]
    sentence: str

    @property
    def failed(self) -> bool:
        return self.word == "bad"


@dataclass(frozen=True, slots=True)
class Comparison:
    reference: Precision
    other: Precision
    runs: tuple[Trained, Trained]  # of the reference, of the other
    verdict: Verdict

    @property
    def same(self) -> bool:
        """Whether the other precision was not shown to train worse."""
        return not self.verdict.failed

    @property
    def parted_at(self) -> int | None:
        """The first step whose training losses differ by more than what is bad; None if none do."""
        pairs = zip(*(run.losses for run in self.runs))
        apart = (step for step, pair in enumerate(pairs) if not abs(_difference(*pair)) <= BAD)
        return next(apart, None)

    def __str__(self) -> str:
        return f"{self.other} against {self.reference}: {self.verdict.sentence}"


def compare(
    train: Callable[[Precision], Trained], reference: Precision, other: Precision
) -> Comparison:
    """Train in both precisions and judge the other by the reference."""
    runs = train(reference), train(other)
    return Comparison(reference, other, runs, verdict(*(run.validation_loss for run in runs)))


def verdict(reference_loss: float, other_loss: float) -> Verdict:
    """Judge one validation loss by another."""
    if not math.isfinite(reference_loss):
        raise NonFinite(
            "precision",
            f"the reference run ended with a validation loss of {reference_loss}",
            "Make it train first: a lower learning rate, or clipped gradients.",
        )
    if not math.isfinite(other_loss):
        return Verdict(math.inf, "bad", f"validation loss {other_loss}: it does not train.")
    difference = _difference(reference_loss, other_loss)
    losses = f"validation loss {other_loss:.4f}, {_words(difference)} {reference_loss:.4f}"
    if abs(difference) < FINE:
        return Verdict(difference, "fine", f"{losses}; under {FINE:.0%}, it trains the same.")
    if abs(difference) <= BAD:
        return Verdict(difference, "look", f"{losses}; look at the curves, or train longer.")
    return Verdict(difference, "bad", f"{losses}; over {BAD:.0%}, it does not train the same.")


def _difference(reference: float, other: float) -> float:
    gap = other - reference
    return gap / abs(reference) if reference else math.copysign(math.inf, gap) if gap else 0.0


def _words(difference: float) -> str:
    if difference == 0:
        return "equal to"
    return f"{abs(difference):.2%} {'above' if difference > 0 else 'below'}"
