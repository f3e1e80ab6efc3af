"""Checks of the loss scale: its rule by hand, then against torch's own scaler."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import nn

from stepladder.labs.grading.check_words import Mistake, expect, is_times

MISTAKES = (
    Mistake(
        "the optimizer steps on gradients that are still scaled",
        "gradient.div_(self.scale)",
        "pass",
        "64 × too large: divide every gradient by the scale",
    ),
    Mistake(
        "an overflow halves the scale but the step is made all the same",
        "        if finite:\n            for gradient",
        "        if True:\n            for gradient",
        "a step was made on infinite gradients",
    ),
    Mistake(
        "good steps are counted on across an overflow",
        "            self.scale /= 2\n            self.good_steps = 0\n",
        "            self.scale /= 2\n",
        "an overflow must begin the count anew",
    ),
    Mistake(
        "the scale never grows again",
        "            self.scale *= 2\n",
        "            pass\n",
        "after 3 good steps with patience 3 the scale is still 8",
    ),
)


def moved(lesson: ModuleType, gradient: float, scale: float) -> tuple[torch.Tensor, Any]:
    """A weight of zero after one step on this scaled gradient, and the scale."""
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([gradient, 2 * scale, -scale])
    rule = lesson.DynamicScale(initial=scale)
    rule.step(torch.optim.SGD([weight], lr=1.0))
    return weight.detach(), rule


def check_gradients_are_unscaled(lesson: ModuleType) -> None:
    """A step moves a weight by the true gradient, whatever the scale was."""
    weight, _ = moved(lesson, 64.0, 64.0)
    true = torch.tensor([-1.0, -2.0, 1.0])
    expect(
        not is_times(weight, true, 64.0),
        "your step is 64 × too large: divide every gradient by the scale before it is used.",
    )
    expect(torch.equal(weight, true), f"the weight moved by {weight.tolist()}, not by [-1, -2, 1].")


def check_an_overflow_is_skipped(lesson: ModuleType) -> None:
    """Infinite gradients move nothing, and the scale is halved."""
    for broken in (float("inf"), float("nan")):
        weight, rule = moved(lesson, broken, 64.0)
        expect(not weight.any(), f"a step was made on infinite gradients ({broken}): skip it.")
        expect(rule.scale == 32, f"after an overflow the scale 64 became {rule.scale}, not 32.")


def check_the_rule(lesson: ModuleType) -> None:
    """The scale doubles after `patience` good steps in a row, no sooner and no later."""
    rule = lesson.DynamicScale(initial=8.0, patience=3)
    for _ in range(3):
        rule.update(overflowed=False)
    expect(rule.scale != 8, "after 3 good steps with patience 3 the scale is still 8: double it.")
    expect(rule.scale == 16, f"after 3 good steps the scale 8 became {rule.scale}, not 16.")
    rule.update(overflowed=False)
    rule.update(overflowed=True)
    for _ in range(2):
        rule.update(overflowed=False)
    expect(rule.scale == 8, "an overflow must begin the count anew: 2 good steps are not 3.")


def check_torch_gives_the_same(lesson: ModuleType) -> None:
    """60 steps have the scales of torch.amp.GradScaler, and the loss falls."""
    torchs = torch.amp.GradScaler("cpu", init_scale=2.0**44, growth_interval=8)

    class Theirs(lesson.DynamicScale):  # type: ignore[name-defined]
        def step(self, optimizer: torch.optim.Optimizer) -> bool:
            used = torchs.get_scale()
            torchs.scale(torch.zeros(1))  # the scaler makes its scale when it is first used
            torchs.step(optimizer)
            torchs.update()
            self.scale = torchs.get_scale()
            return self.scale >= used

    mine = lesson.measure()
    theirs = lesson.train(Theirs(initial=2.0**44))
    for one, other in zip(mine, theirs, strict=True):
        at = f"step {one['step']}"
        expect(
            one["scale"] == other["scale"],
            f"{at}: scale {one['scale']}, torch has {other['scale']}.",
        )
        same = one["skipped"] or one["loss"] == other["loss"]
        expect(same, f"{at}: loss {one['loss']}, torch {other['loss']}.")
    expect(mine[-1]["loss"] < mine[0]["loss"] / 2, "the loss did not halve in 60 steps.")
    alone = lesson.train(lesson.DynamicScale(initial=1.0), num_steps=4)
    expect(all(row["zero_share"] == 1 for row in alone), "without a scale all should be zero.")
