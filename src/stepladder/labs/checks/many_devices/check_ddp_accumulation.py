"""Checks of accumulation under data parallel: gradients, messages, and a whole run."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from stepladder.data import Batch
from stepladder.labs.equipment.lab_ranks import hushed, on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written
from stepladder.measure import Traffic
from stepladder.train import climb

MISTAKES = (
    Mistake(
        "the loss is not divided by the number of micro-batches",
        "(loss / p).backward()",
        "loss.backward()",
        "your gradients are 4 × too large: divide each micro-batch's loss by their number",
    ),
    Mistake(
        "every micro-batch sends its gradients",
        "nullcontext() if number == p else model.no_sync()",
        "nullcontext()",
        "4 all-reduces in a step of 4 micro-batches where 1 is enough",
    ),
    Mistake(
        "no micro-batch sends its gradients",
        "nullcontext() if number == p else model.no_sync()",
        "model.no_sync()",
        "the ranks hold different gradients: the last micro-batch must be outside no_sync",
    ),
    Mistake(
        "gradients are set to zero in every micro-batch",
        "            (loss / p).backward()",
        "            optimizer.zero_grad()\n            (loss / p).backward()",
        "only the last micro-batch's gradients are left",
    ),
)
MICRO_BATCHES = 4


def one_step(lesson: Any) -> tuple[Tensor, int, Tensor, Tensor, float]:
    """On a rank: my gradient and all-reduces, the whole batch's gradient, that of the last part."""
    x, y = (rows[dist.get_rank() :: 2] for rows in lesson.batch_of(0, 32))
    model = DistributedDataParallel(lesson.make_model())
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    (model(x) - y).square().mean().backward()
    weight = model.module[0].weight
    whole = weight.grad.clone()
    still.zero_grad()
    last = x.chunk(MICRO_BATCHES)[-1], y.chunk(MICRO_BATCHES)[-1]
    ((model(last[0]) - last[1]).square().mean() / MICRO_BATCHES).backward()
    tail = weight.grad.clone()
    still.zero_grad()
    with Traffic() as traffic:
        loss = lesson.accumulate(model, still, x, y, MICRO_BATCHES)
    grad = torch.zeros_like(whole) if weight.grad is None else weight.grad
    return grad, traffic.calls["all_reduce"], whole, tail, written(loss, "accumulate")


def check_gradients_of_micro_batches_are_those_of_the_batch(lesson: ModuleType) -> None:
    """Four micro-batches give every rank the gradients of the whole batch."""
    (mine, _, whole, tail, _), (other, *_) = on_ranks(one_step, 2, lesson)
    expect(
        torch.equal(mine, other),
        "the ranks hold different gradients: the last micro-batch must be outside no_sync.",
    )
    expect(
        not is_times(mine, whole, 4),
        "your gradients are 4 × too large: divide each micro-batch's loss by their number.",
    )
    expect(
        not (is_times(mine, tail, 1) or is_times(mine, tail, MICRO_BATCHES)),
        "only the last micro-batch's gradients are left: set them to zero once, before the first.",
    )
    expect_close(mine, whole, "the first layer's gradient of 4 micro-batches", rtol=1e-4)


def check_gradients_travel_once(lesson: ModuleType) -> None:
    """A step of four micro-batches makes one all-reduce."""
    _, sent, *_ = on_ranks(one_step, 2, lesson)[0]
    expect(
        sent <= 1,
        f"{sent} all-reduces in a step of 4 micro-batches where 1 is enough: run all but the last, "
        "forward included, inside model.no_sync().",
    )
    expect(
        sent == 1, "no gradients were sent at all: the last micro-batch must be outside no_sync."
    )


def check_the_run_converges_alike(lesson: ModuleType) -> None:
    """1 and 4 micro-batches have the same losses, and so has `climb` with accumulate=4."""
    (whole, _), (parts, _) = on_ranks(lesson.train, 2, 1)[0], on_ranks(lesson.train, 2, 4)[0]
    expect_close(parts, whole, "losses in 4 micro-batches beside those in one", rtol=1e-4)
    expect_close(on_ranks(climbed, 2, lesson)[0], whole, "losses of stepladder.climb", rtol=1e-4)
    small, _ = on_ranks(lesson.train, 2, 1, 4)[0]
    expect(small[-1] > whole[-1], "steps after every 4 rows should end higher at this rate.")


def climbed(lesson: Any) -> list[float]:
    """The same training by the library."""
    model = lesson.make_model()
    run = climb(
        model,
        loss="squared_error",
        optimizer=f"sgd lr={lesson.RATE}",
        plan="fp32 ddp replicate=2 micro=4 accumulate=4 batch=32",
        device="cpu",
    )
    (x_new, y_new), losses = lesson.batch_of(-1, 256), []
    for step in range(lesson.STEPS):
        mine = tuple(rows[dist.get_rank() :: 2] for rows in lesson.batch_of(step, 32))
        with hushed():  # DDP on the flag with which climb looks for unused parameters
            run.step(Batch.of(mine, position=step * 32, size=32))
        with torch.no_grad():
            losses.append((model(x_new) - y_new).square().mean().item())
    return losses
