"""The plain torch loop that stepladder is compared with: one process, the whole batch, no engine.

It must share no code with what it judges: a test reads this file and all it imports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from .problems.data import make_batches
from .problems.losses import make_loss
from .problems.module import make_module
from .problems.optimizers import RATES, RULES

State = dict[str, Tensor]


@dataclass
class Trajectory:
    """What a training run did: losses of all steps, the state after some, and an evaluation."""

    losses: list[float] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)  # after so many steps
    evaluation: float = math.nan
    start: State = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()  # names in the states that are not buffers


def train(
    problem: Any,
    *,
    saved_at: int,
    shake: float = 0.0,
    work: torch.dtype | None = None,
    narrow: bool = False,
) -> Trajectory:
    """Train as the problem says with plain torch.

    Args:
        shake: a relative change of the initial weights, to learn how well conditioned the problem
            is.
        work: compute in this type, by torch's autocast.
        narrow: the module is called with its parameters and inputs in that type, so that all that
            flows through it is rounded to it, as where parameters are gathered in 16 bits.
    """
    with torch.autocast("cpu", dtype=work, enabled=work is not None):
        return trained(problem, saved_at, shake, work if narrow else None)


def trained(
    problem: Any, saved_at: int, shake: float, narrow: torch.dtype | None = None
) -> Trajectory:
    module = make_module(problem.module, problem.seed)
    loss = make_loss(problem.loss, module, problem.module["classes"])
    if problem.loss["type"] == "own":
        module.criterion = loss
    if shake:
        shaken(module, shake)
    *batches, evaluated = make_batches(problem.module, problem.data, problem.seed)
    optimizer = make_optimizer(problem.optimizer, module, loss)
    schedule = make_schedule(problem.optimizer.get("rate"), optimizer)
    names = frozenset(name for name, _ in module.named_parameters(remove_duplicate=False))
    found = Trajectory(start=state_of(module, loss), parameters=names)
    for index, (inputs, targets) in enumerate(batches, 1):
        value = loss_of(module, loss, inputs, targets, narrow)
        with torch.autocast("cpu", enabled=False):
            value.backward()
        if problem.optimizer.get("clip"):
            trained = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, problem.optimizer["clip"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        found.losses.append(value.item())
        if index in (saved_at, len(batches)):
            found.states[index] = state_of(module, loss)
    training = [part for part in module.modules() if part.training]
    module.eval()
    with torch.no_grad():
        found.evaluation = loss_of(module, loss, *evaluated, narrow).item()
    for part in training:
        part.training = True
    # Once more: an embedding with max_norm shortens rows in evaluation too.
    found.states[len(batches)] = state_of(module, loss)
    return found


def loss_of(
    module: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    inputs: Any,
    targets: Any,
    narrow: torch.dtype | None,
) -> Tensor:
    if getattr(module, "criterion", None) is None:
        return loss(call(module, (inputs,), {}, narrow), targets)
    made = call(module, (), {"inputs": inputs, "labels": targets}, narrow)
    return made["loss"] if isinstance(made, dict) else made.loss


def call(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], narrow: torch.dtype | None
) -> Any:
    if narrow is None:
        return module(*args, **kwargs)
    parameters = rounded_to(dict(module.named_parameters()), narrow)
    return functional_call(module, parameters, rounded_to(args, narrow), rounded_to(kwargs, narrow))


def rounded_to(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return {name: rounded_to(each, dtype) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(rounded_to(each, dtype) for each in value)
    wide = isinstance(value, Tensor) and value.dtype in (torch.float32, torch.float64)
    return value.to(dtype) if wide else value


def make_optimizer(how: dict[str, Any], module: nn.Module, loss: Any) -> torch.optim.Optimizer:
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if isinstance(loss, nn.Module) and getattr(module, "criterion", None) is None:
        trained += [(f"loss.{name}", p) for name, p in loss.named_parameters()]
    if "given" in how:
        return RULES[how["name"]]([parameter for _, parameter in trained])
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in trained:
        decay, rate = how.get("wd", 0.0), how["lr"]
        if how.get("group") and fnmatchcase(name, how["group"]["pattern"]):
            rate, decay = rate * how["group"]["factor"], how["group"]["wd"]
        groups.setdefault((rate, decay), []).append(parameter)
    settings = [
        {"params": members, "lr": r, "weight_decay": d} for (r, d), members in groups.items()
    ]
    if how["name"] == "sgd":
        return torch.optim.SGD(settings, lr=how["lr"], momentum=how.get("momentum", 0.0))
    kind = torch.optim.AdamW if how["name"] == "adamw" else torch.optim.Adam
    return kind(settings, lr=how["lr"], betas=(0.9, 0.95), eps=how["eps"])


def make_schedule(rate: str | None, optimizer: torch.optim.Optimizer) -> LRScheduler:
    if rate == "scheduler":
        return RATES[rate](optimizer)
    return LambdaLR(optimizer, RATES[rate] if rate else lambda step: 1.0)


def state_of(module: nn.Module, loss: Any) -> State:
    """A copy of every parameter and persistent buffer, by name; shared ones under each name."""
    found = {name: tensor.detach().clone() for name, tensor in tensors(module)}
    if isinstance(loss, nn.Module) and getattr(module, "criterion", None) is None:
        found |= {f"loss.{name}": p.detach().clone() for name, p in loss.named_parameters()}
    return found


def tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(n, t) for n, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)]


@torch.no_grad()
def shaken(module: nn.Module, amount: float) -> None:
    draw = torch.Generator().manual_seed(7)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=draw).to(parameter)
        parameter.add_(amount * noise * parameter.abs())
