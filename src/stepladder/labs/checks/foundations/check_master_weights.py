"""Checks of master weights: what small pushes do, and every bit against autocast."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times

MISTAKES = (
    Mistake(
        "the working copy is never refreshed",
        "working.copy_(master)",
        "pass",
        "the working copy stayed behind",
    ),
    Mistake(
        "gradients reach the master still scaled",
        "working.grad.float() / scale",
        "working.grad.float()",
        "1024 × too large: divide by the scale",
    ),
    Mistake(
        "gradients are divided by the scale in float16",
        "working.grad.float() / scale",
        "(working.grad / scale).float()",
        "widen first, then divide",
    ),
    Mistake(
        "the working copy's gradients are never cleared",
        "            working.grad = None\n",
        "",
        "the second step still had the first one's gradient",
    ),
)


def one_weight(lesson: ModuleType) -> Any:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return lesson.MasterWeights(layer, lambda parameters: torch.optim.SGD(parameters, lr=1.0))


def weight_of(module: nn.Module) -> Tensor:
    return module.weight.float().sum()  # type: ignore[operator]


def check_the_scale_is_divided_out(lesson: ModuleType) -> None:
    """The master moves by the true gradient, whatever the scale; tiny gradients survive it."""
    kept = one_weight(lesson)
    kept.step(lambda module: -0.25 * weight_of(module), 1024.0)
    moved = kept.master[0].item() - 1
    expect(moved != 0, "the master did not move: give it the working copy's gradient.")
    expect(
        not is_times(moved, 0.25, 1024),
        "your step is 1024 × too large: divide by the scale before the optimizer steps.",
    )
    expect_close(moved, 0.25, "the master's step", rtol=0)
    kept = one_weight(lesson)
    kept.step(lambda module: -(2.0**-20) * weight_of(module), 2.0**10)
    found = kept.master[0].item() - 1
    expect_close(found, 2.0**-20, "a step of 2^-20", rtol=0)
    kept = one_weight(lesson)
    kept.master[0].data.zero_()
    kept.step(lambda module: -(2.0**-30) * weight_of(module), 2.0**10)
    found = kept.master[0].item()
    expect(found != 0, "a step of 2^-30 became zero: widen first, then divide by the scale.")


def check_each_step_has_its_own_gradient(lesson: ModuleType) -> None:
    """Two steps move by two gradients, not by three."""
    kept = one_weight(lesson)
    for _ in range(2):
        kept.step(lambda module: -0.25 * weight_of(module))
    moved = kept.master[0].item() - 1
    expect(
        moved != 0.75,
        "two steps of 0.25 moved by 0.75: the second step still had the first one's gradient.",
    )
    expect_close(moved, 0.5, "two steps of 0.25", rtol=0)


def check_the_working_copy_is_the_master_rounded(lesson: ModuleType) -> None:
    """After a step the working copy is the master, rounded to float16."""
    kept = one_weight(lesson)
    kept.step(lambda module: -0.1 * weight_of(module))
    working, master = kept.working.weight, kept.master[0]
    expect(working.item() != 1.0, "the working copy stayed behind at 1: round the master into it.")
    expect(working.dtype == torch.float16, f"the working copy became {working.dtype}.")
    expect(torch.equal(working, master.half()), "the working copy is not the master rounded.")


def check_small_pushes(lesson: ModuleType) -> None:
    """A thousand pushes of 0.0001 move float16 alone by nothing, and a master by 0.1."""
    expect(lesson.push(1e-4, 1000, master=False) == 1.0, "float16 alone should not move.")
    expect_close(lesson.push(1e-4, 1000, master=True), 1.1, "with a master", rtol=1e-4)


def check_autocast_gives_the_same(lesson: ModuleType) -> None:
    """Ten steps have the bits of torch.autocast."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    theirs, data = copy.deepcopy(module), torch.randn(32, 16)
    kept = lesson.MasterWeights(module, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)

    def loss_of(model: nn.Module) -> Tensor:
        answer = model(data.to(next(model.parameters()).dtype))
        return (answer.float() - data[:, :4].sin()).square().mean()

    for step in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(theirs)
        (loss * 1024).backward()
        for parameter in theirs.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(1024)
        optimizer.step()
        expect(kept.step(loss_of, 1024.0) == loss.item(), f"step {step}: another loss.")
        for mine, other in zip(kept.master, theirs.parameters()):
            expect(torch.equal(mine, other), f"step {step}: the weights differ from autocast's.")
