"""The learning rate of a larger batch: linear and square-root scaling, and warm-up.

More devices mean a larger batch and fewer steps. Which rate makes the large batch learn as the
small one did, seen over the same samples? Two ways to lose: too small a rate, and it has hardly
moved when the samples are used up; too large, and it hovers too far above the optimum.

    SGD     a step is the rate times the batch's mean gradient. A batch k times as large replaces k
            steps, so its step should go about as far as those k did (Goyal and others, 2017)
    Adam    divides the mean gradient by its own size. Near the optimum that size is noise, and the
            noise of a mean over k times as many samples falls with the root of k (Malladi and
            others, 2022)

At the plateau the loss stays above its minimum: by how much is set by rate and batch. The right
rule keeps that excess where it was. At the start the loss is steep, and a large rate overshoots:
warm-up raises the rate from step to step until it is at its top.

Claim: at a batch 16 times as large the linear rule keeps SGD's plateau and the square root Adam's;
the other rules miss it by a factor of 3 or more. From a steep start, at 32 times the batch, the
linear rule ends a hundred times nearer with warm-up than without. The rates are those of
stepladder.plan.learning_rate.scale_rate.

Predict: With Adam, batch 8 and rate 0.01 the excess loss stays near 0.03. Where does it stay at
batch 128 if the rate is scaled by the linear rule? [excess loss; case = adam, linear]

Often wrong:
- the square root is taken for SGD, too
- warm-up begins with a rate of zero
- the loss is a sum over the batch
- the rule with the lowest plateau is taken for the right one
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

BASE, SAMPLES, RUNS, WIDTH = 8, 4096, 16, 8
RULES = ("none", "sqrt", "linear")
RATES = {"sgd": 0.002, "adam": 0.01}  # at the base batch


def scaled(lr: float, factor: float, rule: str) -> float:
    """The rate for a batch that is so many times as large."""
    # >>> The rate by one of RULES.
    # ??? Four times the batch at rate 0.1: which rates do the three rules give?
    # ??? A rule is a power of the factor. Which power leaves the rate as it is?
    return lr * factor ** {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[rule]
    # <<< return ...  # type: ignore[return-value]


def warmed(lr: float, step: int, warmup: int) -> float:
    """The rate of a step, counted from 0: it rises evenly over `warmup` steps to its top."""
    # >>> The rate of this step.
    # ??? The last of the warm-up's steps has the full rate. And the first one, of four?
    # ??? No step should be lost: what does a step at rate 0 learn?
    # ??? After the warm-up the rate stays where it is. Without warm-up it is always there.
    return lr * min(1.0, (step + 1) / max(warmup, 1))
    # <<< return lr


def batch_loss(errors: Tensor) -> Tensor:
    """The loss whose gradient is used: errors are (runs, batch), and runs do not see each other."""
    # >>> Squared errors: the loss of each run, added up over the runs.
    # ??? Runs are independent of each other: their losses may be added up.
    # ??? Within a run, should the gradient become larger when the batch does?
    return errors.square().mean(dim=1).sum()
    # <<< return errors.square().sum()


def nearest_rule(base: float, plateaus: dict[str, float]) -> str:
    """The rule whose plateau is that of the base batch."""
    # >>> The rule that changes the plateau least, by ratio.
    # ??? Half as high is as far off as twice as high. What happens to a ratio in its logarithm?
    # ??? A plateau that is lower than before is no gain: the rate was too small, and learning slow.
    apart = {rule: abs(math.log(excess / base)) for rule, excess in plateaus.items()}
    return min(apart, key=lambda rule: apart[rule])
    # <<< return ...  # type: ignore[return-value]


def train(optimizer: str, lr: float, batch: int, *, start: float = 1.0, warmup: int = 0) -> float:
    """Mean excess loss over the last quarter of the samples; the optimum is u × v = 1."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(RUNS, SAMPLES, WIDTH, generator=random)
    y = x.sum(dim=2) + torch.randn(RUNS, SAMPLES, generator=random)
    u, v = (torch.full((RUNS, WIDTH, 1), start, requires_grad=True) for _ in range(2))
    kind: Any = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    update, excess = kind([u, v], lr=lr), []
    for step in range(SAMPLES // batch):
        update.param_groups[0]["lr"] = warmed(lr, step, warmup)
        rows = slice(step * batch, (step + 1) * batch)
        update.zero_grad()
        batch_loss((x[:, rows] @ (u * v)).squeeze(2) - y[:, rows]).backward()
        update.step()
        excess.append((u * v - 1).detach().square().sum().item() / RUNS)
    last = excess[-len(excess) // 4 :]
    return sum(last) / len(last)


def measure() -> list[dict[str, Any]]:
    rows = []
    for name, lr in RATES.items():
        base = train(name, lr, BASE)
        rows.append({"case": f"{name}, batch {BASE}", "rate": lr, "excess loss": base})
        found = {rule: train(name, scaled(lr, 16, rule), 16 * BASE) for rule in RULES}
        for rule, excess in found.items():
            row = {"case": f"{name}, {rule}", "rate": scaled(lr, 16, rule), "excess loss": excess}
            rows.append({**row, "right rule": nearest_rule(base, found)})
    for warmup in (0, 4):
        lr = scaled(RATES["sgd"], 32, "linear")
        excess = train("sgd", lr, 32 * BASE, start=3.0, warmup=warmup)
        rows.append({"case": f"steep, warm-up {warmup}", "rate": lr, "excess loss": excess})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
