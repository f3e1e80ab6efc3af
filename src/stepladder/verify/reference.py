"""What one device computes of a course, which every plan is compared with.

It is the plain loop's result. Only fp8 has another reference, this engine on one device, because
plain torch has no fp8 linear layer to train with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from stepladder.data import batches
from stepladder.errors import NonFinite
from stepladder.loss.loss import has_classes_last
from stepladder.model import find_anatomy
from stepladder.plan import BatchSplit, Layout, Plan
from stepladder.train import Run

from .course import Course, start
from .parity_verdict import Plain
from .plain.plain_loop import PlainLoop, StepNumbers

ROUNDING = 1e-6  # of a buffer's own size, allowed where it hardly moves


def reference_key(course: Course) -> str:
    """What a reference depends on: courses that agree in it share one."""
    plan = course.plan
    batch = BatchSplit(plan.batch.sequences)
    same = Plan(plan.precision, plan.keep, batch=batch, optimizer=plan.optimizer)
    return f"{same} {course.steps} {course.device}"


def learn_plain(course: Course, weights: Path) -> Plain:
    """The reference's losses, norms and last state, which is written to `weights`."""
    module, steps = start_reference(course)
    first, old = whole_parameters(module), saved_buffers(module)
    numbers = list(steps)
    last, new = whole_parameters(module), saved_buffers(module)
    moved = movement(first, last)
    if not moved:
        raise NonFinite(
            "optimizer",
            f"{course.plan.optimizer} moved no parameter in {course.steps} steps",
            "Raise the learning rate: runs that stand still are the same whatever they compute.",
        )
    torch.save(last | new, weights)
    scales = {name: distance(new[name], old[name]) + ROUNDING * distance(old[name]) for name in old}
    losses, norms = tuple(each.loss for each in numbers), tuple(each.norm for each in numbers)
    return Plain(losses, norms, weights, frozenset(last), moved, scales)


def start_reference(course: Course) -> tuple[nn.Module, Iterator[StepNumbers]]:
    """The module that is trained, and its steps, each taken when it is asked for."""
    if course.plan.precision.compute == "fp8":
        run, samples = start(replace(course, plan=on_one_device(course.plan)))
        return run.module, engine_steps(run, samples, course.steps)
    loop, samples = start_plain_loop(course)
    return loop.module, plain_steps(loop, samples, course)


def start_plain_loop(course: Course) -> tuple[PlainLoop, Any]:
    module, samples, loss = course.subject.made()
    loop = PlainLoop(
        module,
        loss,
        course.plan.precision,
        course.plan.optimizer,
        keep=course.plan.keep,
        device=course.device,
        blocks=find_anatomy(module).blocks,
        classes_last=has_classes_last(module),
    )
    return loop, samples


def plain_losses(course: Course, seed: int) -> tuple[float, ...] | None:
    """The plain loop's losses; None where it draws random numbers, which no other run draws."""
    loop, samples = start_plain_loop(course)
    before = generator_states(loop.device)
    losses = tuple(step.loss for step in plain_steps(loop, samples, course, seed))
    after = generator_states(loop.device)
    return losses if all(map(torch.equal, before, after)) else None


def generator_states(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def on_one_device(plan: Plan) -> Plan:
    """The plan's precision, batch and optimizer, and nothing else of it."""
    batch = BatchSplit(plan.batch.sequences, plan.batch.micro)
    return Plan(plan.precision, plan.keep, Layout(), batch=batch, optimizer=plan.optimizer)


def plain_steps(
    loop: PlainLoop, samples: Any, course: Course, seed: int = 0
) -> Iterator[StepNumbers]:
    """Train on the global batches of a run whose data has this seed."""
    size = course.plan.batch.sequences
    assert size is not None
    with batches(samples, size=size, seed=seed, workers=0) as feed:
        for batch in islice(feed, course.steps):
            there = batch.to(loop.device)
            yield loop.step(there.inputs, there.targets)


def engine_steps(run: Run, samples: Any, steps: int) -> Iterator[StepNumbers]:
    """Every step's numbers, read before the next one is taken."""
    with run.batches(samples, run.plan.batch.sequences, workers=0) as feed:
        for batch in islice(feed, steps):
            pending = run.step(batch)
            mark = run.health.unread[-1]  # its gradients' norms, which reading lets go of
            scale = 1.0 if mark.scale is None else mark.scale.item()
            norms = dict(zip(mark.norms.names, (mark.norms.each / scale).tolist()))
            yield StepNumbers(pending.loss, pending.grad_norm, norms)


def movement(first: dict[str, torch.Tensor], last: dict[str, torch.Tensor]) -> float:
    """How far all parameters went together."""
    return math.sqrt(sum(distance(last[name], first[name]) ** 2 for name in last))


@torch.no_grad()
def whole_parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter under every name it has: a tied one may live twice where it is cut."""
    named = module.named_parameters(remove_duplicate=False)
    return {name: whole(parameter).detach().cpu().clone() for name, parameter in named}


@torch.no_grad()
def saved_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every buffer that belongs in a checkpoint."""
    saved = module.state_dict().keys()
    named = module.named_buffers(remove_duplicate=False)
    return {name: whole(buffer).detach().cpu().clone() for name, buffer in named if name in saved}


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """All of a parameter, wherever its parts are.

    Over gloo by way of the host: torch 2.11 dies where it gathers straight from a GPU there.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    by_host = dist.get_backend() == "gloo"
    return (parameter.detach().cpu() if by_host else parameter).full_tensor()  # type: ignore[attr-defined]


@torch.no_grad()
def distances(run: Run, weights: Path) -> dict[str, float]:
    """How far this rank's parameters and buffers, put together, lie from the reference's."""
    expected = torch.load(weights, mmap=True, weights_only=True)
    found = (*run.module.named_parameters(remove_duplicate=False),
             *run.module.named_buffers(remove_duplicate=False))  # fmt: skip
    return {name: distance(whole(t).cpu(), expected[name]) for name, t in found if name in expected}


def distance(one: torch.Tensor, other: torch.Tensor | None = None) -> float:
    """The norm of a difference, or of one tensor; elements that are equal differ by nothing,
    infinite ones too."""
    wide = torch.complex128 if one.is_complex() else torch.float64
    first = one.to(wide)
    if other is None:
        return first.nan_to_num().norm().item()
    second = other.to(wide)
    return torch.where(first == second, torch.zeros_like(first), first - second).norm().item()
