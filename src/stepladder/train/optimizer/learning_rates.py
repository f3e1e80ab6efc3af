"""Learning rates of an optimizer's groups: set by a plan's schedule, by torch's, or by hand."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch

from stepladder.errors import ModelError, PlanError, RecordError
from stepladder.plan import Rate

CONSTANT = Rate()
SCHEDULED = (  # what torch's schedulers keep in a group
    *("lr", "initial_lr", "max_lr", "min_lr"),
    *("momentum", "betas", "base_momentum", "max_momentum"),
)


def set_rate(
    optimizer: torch.optim.Optimizer, lr: float, share: float = 1.0, rate: object = CONSTANT
) -> float:
    """Give every group its learning rate; what the first one has without its factor comes back.

    A group whose rate was changed since this last set it, by a torch scheduler or by hand, is the
    user's from then on.

    Args:
        lr: the top rate, without a group's factor.
        share: of every group's top rate.
        rate: the schedule that says so.
    """
    for group in optimizer.param_groups:
        if "lr_factor" not in group:
            raise ModelError(
                "optimizer",
                "a group of parameters was added to run.optimizer, which no gradient reaches",
                "Make them part of the module before climb.",
            )
        changed = bool(group["lr"] != group.get("scheduled_lr", group["lr"]))
        group["own_lr"] = group.get("own_lr", False) or changed  # an optimizer put in may have none
        if (group["own_lr"] or "initial_lr" in group) and rate != CONSTANT:
            raise PlanError(
                "rate",
                f"'{rate}' and a scheduler on run.optimizer both set the learning rate",
                "Leave one of them out.",
            )
        if not group["own_lr"]:
            group["lr"] = group["scheduled_lr"] = share * group.get("top_lr", group["lr"])
        if isinstance(group["lr"], float) and not 0 <= group["lr"] < math.inf:
            problem = f"{group['lr']} was set for the next step"
            raise PlanError("rate", problem, "Set a finite number of 0 or more.")
    first = next((g for g in optimizer.param_groups if g["lr_factor"]), optimizer.param_groups[0])
    return float(first["lr"]) / (first["lr_factor"] or 1.0) if first["own_lr"] else lr * share


def set_rate_by_hand(optimizer: torch.optim.Optimizer, lr: Any, rate: object) -> None:
    """Have every group learn at this rate times its factor from now on."""
    if rate != CONSTANT:
        problem = f"'{rate}' sets the learning rate of every step"
        raise PlanError("run.lr", problem, "Leave rate= out, and set run.lr before each step.")
    number = lr.item() if isinstance(lr, torch.Tensor) and lr.numel() == 1 else lr
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    if not is_number or not 0 <= number < math.inf:
        raise PlanError("run.lr", f"{lr!r} is not a number of 0 or more", "Set one.")
    for group in optimizer.param_groups:
        put_rate(group, float(number) * group["lr_factor"])


def put_rate(group: dict[str, Any], lr: float) -> None:
    """Have a group learn at a rate that no schedule sets."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr
    group["own_lr"] = True


def own_rates(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """What the user or a scheduler has set, by group; empty where the plan's schedule rules."""
    if not any(group["own_lr"] for group in optimizer.param_groups):
        return {}
    return {
        group["label"]: {
            key: float(group[key]) if key == "lr" else group[key]
            for key in SCHEDULED
            if key in group
        }
        for group in optimizer.param_groups
    }


def set_own_rates(
    optimizer: torch.optim.Optimizer, saved: dict[str, dict[str, Any]], *, trained: bool = False
) -> None:
    """Put back what `own_rates` found.

    Args:
        trained: a rate that was set since belongs to steps that are undone; before the first step a
            scheduler may have set it for what comes.
    """
    if not saved and trained:
        for group in optimizer.param_groups:
            if "top_lr" in group:
                put_rate(group, group["top_lr"])
                group["scheduled_lr"] = group["top_lr"]  # which nobody has changed
                group["own_lr"] = isinstance(group["lr"], torch.Tensor)
    for group in optimizer.param_groups if saved else ():
        if group["label"] not in saved:
            raise RecordError(
                "checkpoint",
                f"its learning rates were set by hand for {', '.join(saved)}, and none for "
                f"the parameters with {group['label']}",
                "Use the groups that the run was saved with.",
            )
        rates = dict(saved[group["label"]])
        put_rate(group, rates.pop("lr"))
        group |= {
            k: tuple(value) if isinstance(value, list) else value for k, value in rates.items()
        }
