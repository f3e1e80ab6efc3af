"""Learning-rate schedules: a pure function from the step to a factor of the peak learning rate.

Text form: `cosine warmup=100 steps=1000 floor=0.1`. The rate is 0 < factor <= 1 during warm-up (so
step 0 learns something), 1 at its top, `floor` at `steps`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from stepladder.errors import PlanError, nearest

from .typed_values import real, whole

KINDS = ("constant", "linear", "cosine", "wsd")


@dataclass(frozen=True, slots=True)
class Rate:
    """A learning-rate schedule: a factor by step."""

    kind: str = "constant"
    warmup: int = 0  # steps of linear rise
    steps: int = 0  # where the schedule ends; constant needs none
    floor: float = 0.0  # the factor at the end
    decay: float = 0.2  # with wsd (warm-up, stable, decay): the share of steps that decays

    def factor(self, step: int) -> float:
        """The learning rate of `step`, as a share of the top rate."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "constant":
            return 1.0
        first = self.warmup
        if self.kind == "wsd":
            first = max(first, self.steps - round(self.decay * self.steps))
        left = min(max((self.steps - step) / max(self.steps - first, 1), 0.0), 1.0)
        if self.kind == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
        return self.floor + (1.0 - self.floor) * left  # this way round both ends are exact

    @classmethod
    def parse(cls, text: str) -> Rate:
        kind, *words = text.split() or ["constant"]
        if kind not in KINDS:
            raise PlanError("rate", f"'{kind}' is not a schedule", nearest(kind, KINDS))
        rate = cls(kind)
        for word in words:
            key, _, value = word.partition("=")
            rate = rate._set(key, value)
        if kind != "constant" and rate.steps <= rate.warmup:
            raise PlanError(
                "rate.steps",
                f"{kind} over {rate.steps} steps with {rate.warmup} of warm-up leave none to decay",
                f"Write steps={rate.warmup + 1} or more.",
            )
        return rate

    def _set(self, key: str, value: str) -> Rate:
        counts, shares = ("warmup", "steps"), ("floor", "decay")
        if key not in (*counts, *shares):
            raise PlanError("rate", f"'{key}' is not a setting", nearest(key, (*counts, *shares)))
        number: Any = whole(value) if key in counts else real(value)
        if number is None or number < 0 or (key in shares and number > 1):
            limit = "a whole number of 0 or more" if key in counts else "a share from 0 to 1"
            raise PlanError(f"rate.{key}", f"'{value}' is not {limit}", "Write one.")
        return replace(self, **{key: number})

    def __str__(self) -> str:
        words = [self.kind]
        for key in ("warmup", "steps", "floor", "decay"):
            if getattr(self, key) != getattr(Rate(), key):
                words.append(f"{key}={getattr(self, key)!r}")
        return " ".join(words)


def scale_rate(lr: float, *, batch: int, reference: int, rule: str) -> float:
    """The learning rate for another batch: `linear` (SGD) or `sqrt` (Adam) in its size."""
    rules = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}
    if rule not in rules:
        raise PlanError("rate.scale", f"'{rule}' is not a scaling rule", nearest(rule, rules))
    if batch < 1 or reference < 1:
        raise PlanError(
            "rate.scale", f"batch {batch} and reference {reference} must be 1 or more", "Set both."
        )
    return lr * (batch / reference) ** rules[rule]
