"""Direct preference optimisation (Rafailov and others 2023).

loss = -log sigmoid(beta * ((log p(chosen) - log p(rejected)) - (log r(chosen) - log r(rejected))))

p is the model that is tuned and r the reference, the model as it was. The module returns both
logarithms for each pair instead of logits, so that any rung computes them, and the reference's are
what the same module returns before the first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from stepladder.data import IGNORED, Source
from stepladder.data.conversations.preference_rows import PreferenceRows
from stepladder.errors import PlanError
from stepladder.job.opening.open_recipe import user_code
from stepladder.plan import Plan, Recipe
from stepladder.train.user_code.user_code import LossFunction

ONE_RANK_A_ROW = ("tensor", "context", "pipeline")  # axes along which a rank has a part of a row


@dataclass(frozen=True)
class PreferenceLoss:
    """The mean loss of pairs, from log-probabilities of (pairs, 2)."""

    beta: float

    def __call__(self, tuned: Tensor, reference: Tensor) -> Tensor:
        gained = tuned.float() - reference
        return -functional.logsigmoid(self.beta * (gained[:, 0] - gained[:, 1])).mean()


def return_log_probabilities(module: nn.Module) -> nn.Module:
    """Have a language model return, for tokens and labels of (pairs, 2, length), (pairs, 2)."""
    # A bound method rather than a closure, so that a copy of the module runs its own weights.
    module.forward = MethodType(log_probabilities, module)
    return module


def log_probabilities(module: Any, tokens: Tensor, labels: Tensor) -> Tensor:
    """The logarithm of each answer's probability."""
    outputs = type(module).forward(module, tokens.flatten(0, 1))
    logits = getattr(outputs, "logits", outputs).float()
    each = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return -each.view(labels.shape).sum(-1)


def read_loss(recipe: Recipe, module: nn.Module, samples: Source) -> str | LossFunction | None:
    """What `climb` takes as the recipe's loss; a model of pairs is made to return what it reads."""
    if not isinstance(samples, PreferenceRows):
        return user_code(recipe).read_loss(samples)
    return_log_probabilities(module)
    return PreferenceLoss(recipe.train.beta)


def check_preferences(recipe: Recipe, plan: Plan, samples: Source) -> None:
    """Refuse what cannot compare two whole answers, where samples are pairs of them."""
    if not isinstance(samples, PreferenceRows):
        return
    if recipe.train.loss:
        problem = f"'{recipe.train.loss}' is not read: pairs of answers have a loss of their own"
        raise PlanError("train.loss", problem, "Leave it out.")
    for axis in ONE_RANK_A_ROW:
        if (ways := getattr(plan.layout, axis)) > 1:
            problem = f"{axis}={ways} gives a rank a part of what pairs of answers compare"
            raise PlanError(f"layout.{axis}", problem, "Use ddp, zero1, zero2 or zero3.")
