"""The optimizer a plan names, built for a module: groups, fused kernels, one update.

[Note: the update without a wait] torch's fused optimizers take two device tensors: what to divide
gradients by and whether to leave the update out. Unscaling, clipping and skipping a non-finite
step therefore cost no extra pass over the gradients and no wait for the device. Optimizers without
fused kernels get the same arithmetic in separate passes, and wait for one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError, first_line
from stepladder.plan import Optimizer
from stepladder.rungs import is_out_of_memory
from stepladder.seam.operators import foreach_divide_

from .master_weights import MasterAdam
from .muon.muon import Muon

Named = tuple[str, nn.Parameter]
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


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
    if isinstance(optimizer, MasterAdam | Muon):
        return True
    groups, kind = optimizer.param_groups, type(optimizer)  # a subclass may read nothing of it
    if kind is torch.optim.SGD and not optimizer.state and any(g["momentum"] for g in groups):
        return False
    return kind in FUSED and all(group.get("fused") for group in groups)
