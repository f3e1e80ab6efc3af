"""Checks of ZeRO by hand: bytes, moments, gradients, weights, then torch's optimizer."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times

MISTAKES = (
    Mistake(
        "every rank keeps moments for all parameters",
        "self.mine = nn.Parameter(whole.chunk(dist.get_world_size())[dist.get_rank()].clone())",
        "self.mine = nn.Parameter(whole.clone())",
        "a rank cares for all 552 parameters: its part is 276",
    ),
    Mistake(
        "the stepped parts are not gathered",
        "vector_to_parameters(torch.cat(parts), self.model.parameters())",
        "pass",
        "the model's weights did not change: gather the stepped parts",
    ),
    Mistake(
        "the gradients are summed but not divided, which Adam hides",
        "return part / ways",
        "return part",
        "2 × too large at stage 2: divide by the number of ranks. Adam hides it",
    ),
)


def one_gradient(lesson: Any, stage: int) -> tuple[int, Tensor, Tensor]:
    """How long this rank's part is, its gradient, and what it should be."""
    model = lesson.make_model()
    optimizer = lesson.ZeroAdam(model, stage)
    x, y = lesson.make_rows(0)
    (model(x) - y).square().mean().backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(wanted)
    wanted = wanted.chunk(2)[dist.get_rank()] / 2
    size = optimizer.mine.numel()
    return size, optimizer.own_gradient() if size == len(wanted) else wanted, wanted


def check_the_bytes(lesson: ModuleType) -> None:
    """What a rank keeps for a parameter at each stage."""
    for ways in (2, 64):
        wanted = (16, 8 + 8 / ways, 4 + 12 / ways, 16 / ways)
        for stage in range(4):
            found = lesson.bytes_a_parameter(stage, ways)
            expect_close(found, wanted[stage], f"bytes at stage {stage} on {ways} ranks")


def check_each_rank_cares_for_a_part(lesson: ModuleType) -> None:
    """A rank's part is half of the parameters, and its gradient is the mean over ranks."""
    for stage in (1, 2):
        for size, found, wanted in on_ranks(one_gradient, 2, lesson, stage):
            expect(size == 276, f"a rank cares for all {size} parameters: its part is 276.")
            expect(
                not is_times(found, wanted, 2),
                f"your gradient is 2 × too large at stage {stage}: divide by the number of ranks. "
                "Adam hides it, since it divides by the gradient's own size; SGD would not.",
            )
            expect_close(found, wanted, f"the gradient of a part at stage {stage}")


def check_torch_ends_the_same(lesson: ModuleType) -> None:
    """Both stages end with the weights of ZeroRedundancyOptimizer, and with half the moments."""
    theirs = on_ranks(by_torch, 2, lesson)[0]
    for stage in (1, 2):
        mine, other = on_ranks(lesson.train, 2, stage)
        begun = torch.equal(mine["weights"], on_ranks(started, 1, lesson)[0])
        expect(not begun, "the model's weights did not change: gather the stepped parts.")
        expect(torch.equal(mine["weights"], other["weights"]), "the ranks' weights differ.")
        expect(mine["moments"] == 276, f"{mine['moments']} first moments on a rank, not 276.")
        expect_close(mine["weights"], theirs, f"weights at stage {stage} beside torch's")


def started(lesson: Any) -> Tensor:
    return parameters_to_vector(lesson.make_model().parameters()).detach()


def by_torch(lesson: Any) -> Tensor:
    model = DistributedDataParallel(lesson.make_model())
    optimizer: Any = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=lesson.RATE
    )
    for step in range(lesson.STEPS):
        optimizer.zero_grad()
        x, y = lesson.make_rows(step)
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()
