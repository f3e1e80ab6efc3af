"""Checks of memory: gradients and bytes exactly, leaks and retries by what is still alive."""

from __future__ import annotations

import copy
import weakref
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from stepladder import climb
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written

MISTAKES = (
    Mistake(
        "each loss is not divided by the number of micro-batches",
        "        loss = loss * len(x) / num_rows\n",
        "",
        "4 × too large: divide by the accumulation steps",
    ),
    Mistake(
        "micro-batches of different sizes count the same",
        "loss * len(x) / num_rows",
        "loss / len(micros)",
        "weigh each by its rows",
    ),
    Mistake(
        "the history keeps each loss with its graph",
        "losses.append(loss.item())",
        "losses.append(loss)",
        "losses with their graphs are kept",
    ),
    Mistake(
        "the retry is made inside the error's handler",
        "            pass\n        size //= 2\n",
        "            size //= 2\n            return halve_until_it_fits(attempt, size)\n",
        "still held the failed attempt's tensors",
    ),
    Mistake(
        "the search ends at a power of two",
        "    while too_large - size > 1:",
        "    while False:",
        "more fits than a power of two",
    ),
)


def whole_batch() -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 2), torch.randn(8, 4), torch.randn(8, 2)


def gradient_of(lesson: ModuleType, sizes: list[int]) -> tuple[Tensor, Tensor, float, float]:
    model, x, y = whole_batch()
    x, y = x[: sum(sizes)], y[: sum(sizes)]
    loss = mse_loss(model(x), y)
    (wanted,) = torch.autograd.grad(loss, [model.weight])
    micros = list(zip(x.split(sizes), y.split(sizes)))
    found = written(lesson.accumulate(model, micros), "accumulate")
    assert model.weight.grad is not None
    return model.weight.grad, wanted, found, loss.item()


def check_accumulation(lesson: ModuleType) -> None:
    """Four micro-batches give the gradient and the loss of the whole batch."""
    gradient, wanted, found, loss = gradient_of(lesson, [2, 2, 2, 2])
    expect(
        not is_times(gradient, wanted, 4),
        "your loss is 4 × too large: divide by the accumulation steps.",
    )
    expect_close(gradient, wanted, "the gradient of four micro-batches")
    expect_close(found, loss, "the loss of four micro-batches")


def check_uneven_accumulation(lesson: ModuleType) -> None:
    """A smaller last micro-batch counts as much as it has rows."""
    gradient, wanted, *_ = gradient_of(lesson, [3, 3, 1])
    away = (gradient - wanted).abs().max() / wanted.abs().max()
    expect(
        away < 1e-5,
        f"3 + 3 + 1 rows: the gradient is {away:.0%} off; the mean of means is not the mean: weigh "
        "each by its rows.",
    )


def check_the_ladder_gives_the_same(lesson: ModuleType) -> None:
    """A step on four micro-batches ends where stepladder.climb ends with micro=2."""
    model, x, y = whole_batch()
    theirs = copy.deepcopy(model)
    lesson.accumulate(model, list(zip(x.split(2), y.split(2))))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    run = climb(
        theirs, loss=mse_loss, optimizer="sgd lr=0.1", plan="fp32 micro=2 batch=8", device="cpu"
    )
    run.step((x, y))
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        expect_close(mine, other, "the weights after a step")


def check_checkpointing(lesson: ModuleType) -> None:
    """Checkpointed blocks keep their inputs only, and give the same gradients."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(3)]
    x, gradients = torch.randn(4, 8), []
    plain = lesson.kept_bytes(blocks, x, recompute=False)
    less = lesson.kept_bytes(blocks, x, recompute=True)
    expect(less < plain, f"{less} bytes are kept with recompute and {plain} without.")
    expect_close(less, 3 * x.nbytes, "bytes kept by three checkpointed blocks", rtol=0)
    for recompute in (False, True):
        lesson.forward(blocks, x, recompute=recompute).square().mean().backward()
        gradients.append(
            [p.grad.clone() for b in blocks for p in b.parameters() if p.grad is not None]
        )
        nn.ModuleList(blocks).zero_grad()
    for mine, other in zip(*gradients, strict=True):
        expect(torch.equal(mine, other), "checkpointing changed a gradient.")


def check_no_leak(lesson: ModuleType) -> None:
    """What the history keeps is numbers: no graph outlives its step."""
    model, x, y = whole_batch()
    found = lesson.history(model, [(x, y)] * 3)
    graphs = sum(isinstance(loss, Tensor) and loss.grad_fn is not None for loss in found)
    expect(not graphs, f"{graphs} losses with their graphs are kept: every step's activations "
           "stay. Keep loss.item().")  # fmt: skip
    expect(len(found) == 3, f"{len(found)} losses of 3 batches.")
    expect_close(found[0], mse_loss(model(x), y), "the first loss")


def check_batch_size(lesson: ModuleType) -> None:
    """The largest size that fits is found, to the last row, in few trials."""
    for true in (1, 2, 3, 64, 100, 1023):
        tried: list[int] = []
        found = lesson.largest(lambda n, true=true, tried=tried: tried.append(n) or n <= true)
        expect(found <= true, f"{found} does not fit: the largest that does is {true}.")
        expect(found == true, f"{found}, and {true} fits: more fits than a power of two.")
        expect(len(tried) <= 25, f"{len(tried)} trials for {true}: halve the gap each time.")


def check_out_of_memory(lesson: ModuleType) -> None:
    """After a MemoryError half is tried, when the failed attempt has let go of its memory."""
    last: list[Any] = []

    def attempt(size: int) -> float:
        held = last and last[-1]() is not None
        expect(not held, f"the try with {size} rows still held the failed attempt's tensors: "
               "leave the handler first.")  # fmt: skip
        tensor = torch.zeros(size, 1024)
        last.append(weakref.ref(tensor))
        if size > 10:
            raise MemoryError(f"{size} rows do not fit")
        return float(tensor.sum())

    size, loss = lesson.halve_until_it_fits(attempt, 64)
    expect(size == 8, f"64 rows ended as {size}: 64, 32, 16 do not fit, 8 do.")
    expect(loss == 0, "the loss of the try that fitted was expected.")
    expect(lesson.measure()[1]["rows in 1 MiB"] > 2 * lesson.measure()[0]["rows in 1 MiB"],
           "recomputing should leave room for over twice the rows.")  # fmt: skip
