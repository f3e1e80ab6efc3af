"""What a Lightning module's configure_optimizers makes, in words where there are any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from stepladder.errors import PlanError
from stepladder.plan import Optimizer
from stepladder.plan.optimizer import Group

from .given_optimizer import is_optimizer

KINDS = {torch.optim.AdamW: "adamw", torch.optim.Adam: "adam", torch.optim.SGD: "sgd"}
UNKNOWN = ("amsgrad", "maximize", "nesterov", "dampening")  # settings that words have no place for


def configured(
    module: Any, *, scheduled: bool
) -> tuple[Optimizer | torch.optim.Optimizer, LRScheduler | None]:
    """What configure_optimizers returns: an optimizer, in words where there are any, and its
    scheduler, unless the schedule is given otherwise."""
    made, schedulers = apart(module.configure_optimizers())
    scheduler = None if scheduled or not schedulers else step_scheduler(module, schedulers)
    if scheduler is not None:
        return made, scheduler  # which sets the rates of this very object
    for group in made.param_groups:
        group["lr"] = group.pop("initial_lr", group["lr"])  # as before any scheduler
    return words_of(made, {p: name for name, p in module.named_parameters()}) or made, None


def step_scheduler(module: Any, given: Any) -> LRScheduler:
    """The one scheduler, where it takes a step after each of the optimizer's."""
    first = given[0] if isinstance(given, list | tuple) and len(given) == 1 else given
    held = first if isinstance(first, Mapping) else {"scheduler": first}
    every = f"{held.get('frequency', 1)} {held.get('interval', 'epoch')}"
    if not isinstance(held.get("scheduler"), LRScheduler) or every != "1 step":
        problem = f"the scheduler of {type(module).__name__} takes a step every {every}"
        remedy = (
            "Return it with 'interval': 'step'; give rate='cosine warmup=100 steps=1000'; or give "
            "rate='constant' and have a scheduler of run.optimizer take its steps in your loop."
        )
        raise PlanError("configure_optimizers", problem, remedy)
    return held["scheduler"]


def apart(made: Any) -> tuple[Any, Any]:
    """The one optimizer and the schedulers, in whichever form they were returned."""
    scheduler: Any = None
    if isinstance(made, Mapping):
        made, scheduler = made.get("optimizer"), made.get("lr_scheduler")
    elif isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], list):
        made, scheduler = made
    if isinstance(made, list | tuple):
        if len(made) != 1:
            problem = f"returned {len(made)} optimizers, and a run has one"
            raise PlanError("configure_optimizers", problem, "Give optimizer= in words.")
        made = made[0]
    if not is_optimizer(made):
        problem = f"returned {'None' if made is None else type(made).__name__}, and no optimizer"
        raise PlanError("configure_optimizers", problem, "Return one, or give optimizer= in words.")
    return made, scheduler


def words_of(made: torch.optim.Optimizer, names: dict[Tensor, str]) -> Optimizer | None:
    """A torch optimizer's settings; parameters whose rate or decay differ are named one by one.

    None where words cannot say it: the optimizer itself is used then, without fused kernels.
    """
    groups = made.param_groups
    if type(made) not in KINDS or any(group.get(key) for group in groups for key in UNKNOWN):
        return None
    if not all(any_has(groups, p) for p in names if p.requires_grad):
        return None
    largest = Counter({index: len(group["params"]) for index, group in enumerate(groups)})
    base = groups[largest.most_common(1)[0][0]]
    others = [group for group in groups if group is not base]
    shared = ("betas", "eps", "momentum")
    if any(group.get(key) != base.get(key) for group in others for key in shared):
        return None
    lr = float(base["lr"])
    known = {key: base[key] for key in shared if key in base}
    rules = tuple(
        Group(names[parameter], float(group["lr"]) / (lr or 1.0), float(group["weight_decay"]))
        for group in others
        for parameter in group["params"]
    )
    name = "adamw" if base.get("decoupled_weight_decay") else KINDS[type(made)]
    return Optimizer(name, lr=lr, wd=float(base["weight_decay"]), groups=rules, **known)


def any_has(groups: list[dict[str, Any]], parameter: Tensor) -> bool:
    return any(parameter is one for group in groups for one in group["params"])
