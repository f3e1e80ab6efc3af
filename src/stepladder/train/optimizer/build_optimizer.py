"""The optimizer a plan names, built for a module: groups, fused kernels, one update.

[Note: the update without a wait] torch's fused optimizers take two device tensors: what to divide
gradients by and whether to leave the update out. Unscaling, clipping and skipping a non-finite
step therefore cost no extra pass over the gradients and no wait for the device. Optimizers without
fused kernels get the same arithmetic in separate passes, and wait for one number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError, RecordError, first_line
from stepladder.plan import Optimizer, Rate
from stepladder.rungs import is_out_of_memory
from stepladder.seam.operators import foreach_divide_

from .master_weights import MasterAdam

Named = tuple[str, nn.Parameter]
CONSTANT = Rate()
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
SCHEDULED = (  # what torch's schedulers keep in a group
    *("lr", "initial_lr", "max_lr", "min_lr"),
    *("momentum", "betas", "base_momentum", "max_momentum"),
)


def build_optimizer(
    how: Optimizer,
    parameters: Iterable[Named],
    blocks: Sequence[str] = (),
    masters: Mapping[nn.Parameter, torch.Tensor] | None = None,
    *,
    fused: bool = True,
) -> torch.optim.Optimizer:
    """torch's optimizer for these parameters, fused where torch has a fused kernel.

    Args:
        masters: values in float32 of parameters that are stored in fewer bits.
        fused: its last elements a CPU rounds otherwise, and so a shard otherwise than the whole.
    """
    # A pipeline stage may have no trainable parameter; torch's optimizers need one.
    named = list(parameters) or [("", nn.Parameter(torch.empty(0)))]
    if how.is_code:
        problem = f"{how.name} stands for code, and a plan holds none"
        raise PlanError("optimizer", problem, "Give it to climb: optimizer=torch.optim.RMSprop.")
    groups = make_groups(how, named, blocks)
    if how.name == "adafactor":
        return torch.optim.Adafactor(groups, lr=how.lr, weight_decay=how.wd)
    if how.name == "sgd":
        make_sgd = partial(torch.optim.SGD, lr=how.lr, momentum=how.momentum, weight_decay=how.wd)
        return with_momentum(make_sgd(groups, fused=fused and trusts_fused_sgd(named)))
    options: dict[str, Any] = {"lr": how.lr, "betas": how.betas, "eps": how.eps}
    options["weight_decay"] = how.wd
    if masters is not None:
        return MasterAdam(groups, masters, decoupled=how.name == "adamw", **options)
    make = torch.optim.AdamW if how.name == "adamw" else torch.optim.Adam
    return make(groups, fused=fused and all(p.is_floating_point() for _, p in named), **options)


def trusts_fused_sgd(named: Sequence[Named]) -> bool:
    """Whether torch's fused SGD computes what it says for these parameters.

    On the CPU it is wrong for half-precision parameters (torch 2.13: off by a tenth after one
    step, no error); test_build_optimizer.py compares every optimizer with float64.
    """
    return all(p.dtype == torch.float32 or p.device.type != "cpu" for _, p in named)


def with_momentum(optimizer: torch.optim.SGD) -> torch.optim.SGD:
    """Start momentum at zero instead of at the first step.

    torch's fused kernel makes the buffers in the first step and fills them there; were that step
    left out as non-finite, the next one would read memory nobody wrote.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def make_groups(
    how: Optimizer, named: Sequence[Named], blocks: Sequence[str]
) -> list[dict[str, Any]]:
    """Parameters with the same rate factor and decay together; `lr_factor` scales the schedule."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        groups.setdefault(settings(how, name, blocks), []).append(parameter)
    return [
        {
            "params": members,
            "weight_decay": decay,
            **rate_of_group(how.lr * factor, factor, f"lr={factor}x wd={decay}"),
        }
        for (factor, decay), members in groups.items()
    ]


def rate_of_group(lr: float, factor: float, label: str) -> dict[str, Any]:
    """What `set_rate` reads and writes in a group of parameters."""
    return {
        "lr": lr,
        "top_lr": lr,  # which the schedule scales
        "lr_factor": factor,  # of the rate that `run.lr` tells
        "scheduled_lr": lr,  # what was set last
        "own_lr": False,  # whether somebody else has set it since
        "label": label,
    }


def settings(how: Optimizer, name: str, blocks: Sequence[str]) -> tuple[float, float]:
    """The rate factor and the decay of one parameter."""
    factor = how.layers ** depth_below_top(name, blocks)
    for group in how.groups:
        if fnmatchcase(name, group.pattern):
            return factor * group.lr_factor, how.wd if group.wd is None else group.wd
    return factor, how.wd


def depth_below_top(name: str, blocks: Sequence[str]) -> int:
    """How many blocks lie above this parameter's: 0 in the exit, all of them in the entry."""
    for index, block in enumerate(blocks):
        if name.startswith(f"{block}."):
            return len(blocks) - index
    above_first = any(word in name for word in ("embed", "position", "stem", "patch"))
    return len(blocks) + 1 if blocks and above_first else 0


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


def set_rate_by_hand(optimizer: torch.optim.Optimizer, lr: float, rate: object) -> None:
    """Have every group learn at this rate times its factor from now on."""
    if rate != CONSTANT:
        problem = f"'{rate}' sets the learning rate of every step"
        raise PlanError("run.lr", problem, "Leave rate= out, and set run.lr before each step.")
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 <= lr < math.inf:
        raise PlanError("run.lr", f"{lr!r} is not a number of 0 or more", "Set one.")
    for group in optimizer.param_groups:
        put_rate(group, lr * group["lr_factor"])


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


def update(
    optimizer: torch.optim.Optimizer,
    divisor: torch.Tensor | None,
    bad: torch.Tensor,
    lr_factor: float = 1.0,
) -> None:
    """One step on gradients divided by `divisor`, where there is one; none where `bad` is 1.

    Args:
        lr_factor: of every learning rate, for this step alone: schedulers compute the next rate
            from the one they find.
    """
    if lr_factor != 1:
        before = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * lr_factor
        update(optimizer, divisor, bad)
        for group, lr in zip(optimizer.param_groups, before):
            group["lr"] = lr
        return
    home = next((p.device for g in optimizer.param_groups for p in g["params"]), bad.device)
    if home != bad.device:
        # Parameters on the host: it reads these two when all that was sent before them is there.
        divisor, bad = None if divisor is None else divisor.to(home), bad.to(home)
    if takes_divisor(optimizer):
        # See [Note: the update without a wait]. GradScaler hands them over in the same way.
        optimizer.grad_scale, optimizer.found_inf = divisor, bad  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.grad_scale = optimizer.found_inf = None  # type: ignore[attr-defined]
    elif not bad.item():
        gradients = [
            p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None
        ]
        if divisor is not None:
            foreach_divide_(gradients, divisor)
        take_step(optimizer)


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's own step; what the user's code raises there, in one line."""
    try:
        optimizer.step()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(
            "optimizer",
            f"{type(optimizer).__name__}.step raised {type(error).__name__}: {first_line(error)}",
            "Mend it, or use another.",
        ) from error


def takes_divisor(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it reads the two tensors of [Note: the update without a wait].

    torch's fused SGD makes its momentum in a first step that must not be left out.
    """
    if isinstance(optimizer, MasterAdam):
        return True
    groups, kind = optimizer.param_groups, type(optimizer)  # a subclass may read nothing of it
    if kind is torch.optim.SGD and not optimizer.state and any(g["momentum"] for g in groups):
        return False
    return kind in FUSED and all(group.get("fused") for group in groups)
