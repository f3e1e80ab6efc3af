"""Checks of the pipeline: gradients of each stage, the bubble, then torch's own schedule."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times

MISTAKES = (
    Mistake(
        "the loss is not divided by the number of micro-batches",
        ".square().mean() / micro_batches",
        ".square().mean()",
        "4 × too large: divide each micro-batch's loss by their number",
    ),
    Mistake(
        "what arrives from the stage before asks for no gradient",
        "inputs.append(got.requires_grad_())",
        "inputs.append(got)",
        "there is nothing to send: this tensor has no gradient",
    ),
    Mistake(
        "backward begins with the first micro-batch on one stage, with the last on the other",
        "for micro in reversed(range(micro_batches)):",
        "for micro in range(micro_batches)[:: 1 if rank else -1]:",
        "gradients of one micro-batch meet activations of another",
    ),
    Mistake(
        "the bubble is taken to be (p - 1)/m",
        "/ (micro_batches + num_stages - 1)",
        "/ micro_batches",
        "a stage waits for p - 1 of m + p - 1 units, not of m",
    ),
)
MICRO = 4


def gradients(lesson: Any) -> list[Tensor]:
    stage = lesson.make_stage(dist.get_rank())
    lesson.run(stage, *lesson.make_batch(), MICRO)
    return grads_of(stage)


def grads_of(stage: nn.Module) -> list[Tensor]:
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in stage.parameters()
    ]


def whole(lesson: Any) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Gradients of both stages on one rank; and of stage 0 if micro-batches were mixed up."""
    stages = [lesson.make_stage(rank) for rank in range(2)]
    x, y = lesson.make_batch()
    middle = stages[0](x)
    middle.retain_grad()
    (stages[1](middle) - y).square().mean().backward()
    right = [grads_of(stage) for stage in stages]
    mixed = lesson.make_stage(0)
    pieces = middle.grad.chunk(MICRO)
    mixed(x).backward(torch.cat(pieces[::-1]))
    return right, grads_of(mixed)


def check_the_gradients_are_those_of_the_batch(lesson: ModuleType) -> None:
    """Four micro-batches through two stages give the gradients of the whole model."""
    right, mixed = on_ranks(whole, 1, lesson)[0]
    mine = on_ranks(gradients, 2, lesson)
    expect(
        not is_times(mine[1][0], right[1][0], MICRO),
        "your gradients are 4 × too large: divide each micro-batch's loss by their number.",
    )
    same = torch.allclose(mine[0][0], mixed[0], rtol=1e-4, atol=1e-8)
    expect(
        not same,
        "gradients of one micro-batch meet activations of another on stage 0: go backward in the "
        "same order on both stages.",
    )
    for rank in (1, 0):
        for found, wanted in zip(mine[rank], right[rank], strict=True):
            expect_close(found, wanted, f"a gradient on stage {rank}")


def check_the_bubble(lesson: ModuleType) -> None:
    """A stage waits (p - 1)/(m + p - 1) of the time, by formula and counted in ticks."""
    found = lesson.bubble(4, 8)
    expect(
        not is_times(found, 3 / 8, 1),
        "3/8 for 4 stages and 8 micro-batches: a stage waits for p - 1 of m + p - 1 units, not of "
        "m.",
    )
    expect_close(found, 3 / 11, "the bubble of 4 stages and 8 micro-batches")
    for micro in (1, 8):
        for rank, waiting in enumerate(on_ranks(lesson.share_waiting, 2, micro)):
            expect_close(waiting, 1 / (micro + 1), f"rank {rank}'s waiting with {micro}")


def check_torch_gives_the_same(lesson: ModuleType) -> None:
    """torch's ScheduleGPipe leaves the same gradients on each stage."""

    def by_torch() -> list[Tensor]:
        rank, (x, y) = dist.get_rank(), lesson.make_batch()
        part = lesson.make_stage(rank)
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        mean = nn.functional.mse_loss
        schedule = ScheduleGPipe(stage, n_microbatches=MICRO, loss_fn=mean, scale_grads=True)
        schedule.step(x) if rank == 0 else schedule.step(target=y)
        return grads_of(part)

    mine, theirs = on_ranks(gradients, 2, lesson), on_ranks(by_torch, 2)
    for rank in range(2):
        for found, wanted in zip(mine[rank], theirs[rank], strict=True):
            expect_close(found, wanted, f"a gradient on stage {rank} beside ScheduleGPipe's")
