"""Checks of PowerSGD: a matrix it must hit, what it becomes, what feedback adds, torch's hook."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, ratio, written

MISTAKES = (
    Mistake(
        "the factors are not averaged over the ranks",
        "torch.linalg.qr(average(matrix @ self.q)).Q",
        "torch.linalg.qr(matrix @ self.q).Q",
        "the ranks take different matrices for the mean: average both factors",
    ),
    Mistake(
        "the columns of P are not made orthonormal",
        "torch.linalg.qr(average(matrix @ self.q)).Q",
        "average(matrix @ self.q)",
        "make P's columns orthonormal",
    ),
    Mistake(
        "what was missed is forgotten",
        "self.missed = matrix - product",
        "pass",
        "keep what the product missed and add it to the next gradient",
    ),
    Mistake(
        "Q begins anew at every step",
        "        self.q = average(matrix.T @ p)\n        product = p @ self.q.T\n",
        "        product = p @ average(matrix.T @ p).T\n",
        "keep Q for the next step",
    ),
)
STEPS = 40


def check_a_thin_matrix_arrives_whole(lesson: ModuleType) -> None:
    """A gradient that is of rank 1 on both ranks is averaged exactly, and on both alike."""

    def thin() -> tuple[Tensor, Tensor]:
        left = torch.linspace(-1, 1, lesson.SIZE)
        right = torch.linspace(0, 2, lesson.SIZE) + 1
        mine = torch.outer(left, right) * (1 + dist.get_rank())
        return written(lesson.PowerSGD(1)(mine), "PowerSGD"), torch.outer(left, right) * 1.5

    found = on_ranks(thin, 2)
    for mine, wanted in found:
        factor = ratio(mine, wanted)
        expect(
            not abs(factor) >= 0 or abs(factor - 1) < 1e-3,
            f"the product is {factor:.3g} × the mean: make P's columns orthonormal, or its length "
            "counts twice.",
        )
        expect_close(mine, wanted, "the mean of two matrices of rank 1", rtol=1e-4)


def check_it_becomes_the_best_there_is(lesson: ModuleType) -> None:
    """Without feedback 40 steps end at the best matrix of rank 2, with 1/16 of the bytes."""
    (mine, other), exact = on_ranks(lesson.run, 2, 2, STEPS, False), None
    expect(
        torch.equal(mine["product"], other["product"]),
        "the ranks take different matrices for the mean: average both factors.",
    )
    expect_close(mine["sent"], 1 / 16, "the share of the gradient that was sent")
    exact = mine["exact"]
    expect(
        (mine["product"] - best(exact)).norm() <= 0.01 * exact.norm(),
        f"after {STEPS} steps on the same gradients the product is not the best of rank 2: keep Q "
        "for the next step.",
    )


def best(matrix: Tensor) -> Tensor:
    """The nearest matrix of rank 2 (Eckart and Young)."""
    u, s, v = torch.linalg.svd(matrix)
    return u[:, :2] @ torch.diag(s[:2]) @ v[:2]


def check_nothing_is_lost(lesson: ModuleType) -> None:
    """With error feedback the mean of what 100 steps sent comes to the whole gradient."""
    error = on_ranks(lesson.run, 2, 2, 100)[0]["error"]
    expect(
        error < 0.06,
        f"the mean of 100 steps is off by {error:.0%}: keep what the product missed and add it to "
        "the next gradient.",
    )


def check_torch_becomes_the_same(lesson: ModuleType) -> None:
    """powerSGD_hook under DistributedDataParallel comes to the same matrix."""
    mine = on_ranks(lesson.run, 2, 2, STEPS, False)[0]["product"]
    theirs = on_ranks(by_torch, 2, lesson)[0]
    expect_close(mine, theirs, "the product beside powerSGD_hook's", rtol=0.01)


class Weighed(nn.Module):
    """A module whose weight has the gradient it is given."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, size))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def by_torch(lesson: Any) -> Tensor:
    model = DistributedDataParallel(Weighed(lesson.SIZE))
    plain = 2  # steps before it begins, which the hook asks for
    state = PowerSGDState(
        process_group=None,
        matrix_approximation_rank=2,
        start_powerSGD_iter=plain,
        use_error_feedback=False,
    )
    model.register_comm_hook(state, powerSGD_hook)
    gradient = lesson.make_gradient(dist.get_rank())
    for _ in range(plain + STEPS):
        model.zero_grad()
        model(gradient).backward()
    found = model.module.weight.grad
    assert isinstance(found, Tensor)
    return found
