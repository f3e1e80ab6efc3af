"""Optimizers and learning rates that are code, as users bring them, beside those in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR

Spec = dict[str, Any]
FORMS = ("instance", "class", "function")


class Averaged(torch.optim.Optimizer):
    """An optimizer of a user's own: steps along a running mean of gradients, and counts them."""

    def __init__(self, params: Iterable[Any], lr: float, share: float = 0.3) -> None:
        super().__init__(params, {"lr": lr, "share": share})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                kept = self.state[p]
                if not kept:
                    kept["steps"], kept["mean"] = 0, torch.zeros_like(p)
                kept["steps"] += 1
                kept["mean"].lerp_(p.grad, group["share"])
                p.add_(kept["mean"], alpha=-group["lr"] * (1 + 1 / kept["steps"]))


# A large epsilon: rounding errors in gradients that are zero stay small.
RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, eps=1e-2, momentum=0.5),
    "nadam": partial(torch.optim.NAdam, lr=0.02, eps=1e-3),
    "adagrad": partial(torch.optim.Adagrad, lr=0.02, eps=1e-3),
    "own": partial(Averaged, lr=0.05),
}


def bring_optimizer(rng: Random, optimizer: Spec, *, summed: bool) -> Spec:
    """Now and then an optimizer, or a schedule, that is given as code.

    Args:
        summed: the loss is a sum, under which a rule without normalised steps would diverge.
    """
    if rng.random() < 0.2:
        rules = [name for name in RULES if not (summed and name == "own")]
        clip = {key: value for key, value in optimizer.items() if key == "clip"}
        optimizer = {"name": rng.choice(rules), "given": rng.choice(FORMS), **clip}
    if rng.random() < 0.15:
        optimizer = {**optimizer, "rate": rng.choice(tuple(RATES))}
    return optimizer


def make_given(optimizer: Spec, parameters: Iterable[Tensor]) -> Any:
    """The optimizer as `climb` takes it: an instance of these, a class, or a function."""
    rule = RULES[optimizer["name"]]
    if optimizer["given"] == "instance":
        return rule(list(parameters))
    return rule if optimizer["given"] == "class" else lambda members: rule(members)


def decay(step: int) -> float:
    """A share of the learning rate, by step."""
    return 0.8**step


RATES: dict[str, Any] = {"function": decay, "scheduler": partial(StepLR, step_size=2, gamma=0.5)}
