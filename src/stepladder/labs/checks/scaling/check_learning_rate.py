"""Checks of batch scaling: the rates, the plateaus they lead to, and a steep start."""

from __future__ import annotations

from types import ModuleType

import torch

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written
from stepladder.plan.learning_rate import Rate, scale_rate

MISTAKES = (
    Mistake(
        "the square root is taken for SGD, too",
        '"linear": 1.0',
        '"linear": 0.5',
        "The linear rule multiplies the rate as often as the batch",
    ),
    Mistake(
        "warm-up begins with a rate of zero",
        "min(1.0, (step + 1) / max(warmup, 1))",
        "min(1.0, step / max(warmup, 1))",
        "a step at rate 0 learns nothing",
    ),
    Mistake(
        "the loss is a sum over the batch",
        "errors.square().mean(dim=1).sum()",
        "errors.square().sum()",
        "A sum over the batch is the linear rule already",
    ),
    Mistake(
        "the rule with the lowest plateau is taken for the right one",
        "abs(math.log(excess / base))",
        "excess",
        "a lower plateau is reached by learning more slowly",
    ),
)


def check_the_rules(lesson: ModuleType) -> None:
    """Each rule gives the rate that scale_rate gives."""
    for rule in ("none", "sqrt", "linear"):
        found = written(lesson.scaled(0.1, 16, rule), "scaled")
        wanted = scale_rate(0.1, batch=128, reference=8, rule=rule)
        expect(
            rule != "linear" or not is_times(found, 0.4, 1),
            "16 times the batch: the rate became 0.4, the square root's. The linear rule "
            "multiplies the rate as often as the batch.",
        )
        expect_close(found, wanted, f"the rate by the rule '{rule}', 16 times the batch")


def check_warm_up(lesson: ModuleType) -> None:
    """The rate rises evenly to its top, and the first step learns something, too."""
    for warmup in (4, 1, 0):
        schedule = Rate.parse(f"constant warmup={warmup}")
        for step in range(6):
            found = lesson.warmed(0.2, step, warmup)
            expect(found != 0, f"step {step} has a rate of 0: a step at rate 0 learns nothing.")
            wanted = 0.2 * schedule.factor(step)
            expect_close(found, wanted, f"the rate of step {step} with {warmup} of warm-up")


def check_the_loss(lesson: ModuleType) -> None:
    """The gradient of a larger batch is a mean, no larger than that of a small one."""
    for batch in (4, 64):
        errors = torch.full((2, batch), 3.0)
        found = written(lesson.batch_loss(errors), "batch_loss")
        expect(
            not is_times(found, 18.0, batch),
            f"{batch} samples: the gradient is {batch} times that of one. A sum over the batch is "
            "the linear rule already: take the mean.",
        )
        expect_close(found, 18.0, f"the loss of two runs with {batch} errors of 3")


def check_the_choice(lesson: ModuleType) -> None:
    """The right rule leaves the plateau where it was."""
    plateaus = {"none": 0.002, "sqrt": 0.0104, "linear": 0.04}
    found = written(lesson.nearest_rule(0.01, plateaus), "nearest_rule")
    expect(
        found != "none",
        "the plateau was at 0.01 and 'none' has 0.002: a lower plateau is reached by learning more "
        "slowly. The right rule leaves it where it was.",
    )
    expect(found == "sqrt", f"the plateau was at 0.01; of {plateaus} you choose '{found}'.")
    found = lesson.nearest_rule(0.01, {"none": 0.0021, "linear": 0.0179})
    expect(found == "linear", "0.0179 is 1.8 times 0.01, but 0.0021 is less than a quarter of it.")


def check_the_plateaus(lesson: ModuleType) -> None:
    """At 16 times the batch SGD keeps its plateau by the linear rule, Adam by the square root."""
    for name, right in (("sgd", "linear"), ("adam", "sqrt")):
        lr = lesson.RATES[name]
        base = lesson.train(name, lr, lesson.BASE)
        for rule in ("none", "sqrt", "linear"):
            found = lesson.train(name, lesson.scaled(lr, 16, rule), 16 * lesson.BASE) / base
            near = 1 / 1.5 < found < 1.5
            said = f"{name} by the rule '{rule}' hovers at {found:.2g} times its plateau"
            expect(near == (rule == right), f"{said}: only '{right}' should stay near it.")


def check_a_steep_start(lesson: ModuleType) -> None:
    """At 32 times the batch a steep start needs warm-up."""
    lr = lesson.scaled(lesson.RATES["sgd"], 32, "linear")
    without, risen = (
        lesson.train("sgd", lr, 32 * lesson.BASE, start=3.0, warmup=warmup) for warmup in (0, 4)
    )
    expect(
        10 * risen < without,
        f"the excess loss ends at {risen:.2g} with warm-up and at {without:.2g} without.",
    )
