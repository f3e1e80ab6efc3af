"""Checks of threads in one process: the gradient exactly, the traffic to the byte."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from stepladder.bench.ring_all_reduce import ring_bytes
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written

MISTAKES = (
    Mistake(
        "the shares' gradients are summed and not weighed",
        "g[index] * (rows / len(x))",
        "g[index]",
        "3 × too large: weigh each share by its part of the rows",
    ),
    Mistake(
        "the copies are made once and go stale",
        "other.load_state_dict(self.model.state_dict())",
        "pass",
        "the copies are stale",
    ),
    Mistake(
        "the first device sends to itself",
        "return 2 * (ways - 1) * model_bytes\n",
        "return 2 * ways * model_bytes\n",
        "the first device keeps its own copy",
    ),
    Mistake(
        "a ring sends the whole gradient at each hop",
        "return 2 * (ways - 1) * model_bytes / ways",
        "return 2 * (ways - 1) * model_bytes * 1.0",
        "a hop carries one part of 4",
    ),
)


def gradients(lesson: ModuleType, rows: int, *, moved: bool = False) -> tuple[Tensor, Tensor]:
    """The weight's gradient with three threads, and alone."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 2), torch.randn(rows, 4), torch.randn(rows, 2)
    threaded = lesson.Threaded(model, 3)
    if moved:
        nn.init.ones_(model.weight)
    threaded.backward(x, y)
    found = written(model.weight.grad, "the gradient")
    (alone,) = torch.autograd.grad(mse_loss(model(x), y), [model.weight])
    return found, alone


def check_the_gradient(lesson: ModuleType) -> None:
    """Three threads give the gradient of the whole batch, also of 7 rows."""
    found, alone = gradients(lesson, 6)
    expect(
        not is_times(found, alone, 3),
        "your gradient is 3 × too large: weigh each share by its part of the rows.",
    )
    expect_close(found, alone, "the gradient of 6 rows")
    expect_close(*gradients(lesson, 7), "the gradient of 3 + 2 + 2 rows")


def check_the_copies_follow(lesson: ModuleType) -> None:
    """After the model has moved, the copies compute with its new weights."""
    found, alone = gradients(lesson, 6, moved=True)
    fresh = torch.allclose(found, alone, rtol=1e-4)
    expect(fresh, "the gradient is of the old weights: the copies are stale, give them the "
           "model's state each step.")  # fmt: skip


def check_threads_traffic(lesson: ModuleType) -> None:
    """The first device's link carries a model to and a gradient from each other device."""
    found = written(lesson.first_link_bytes(1000, 8), "first_link_bytes")
    expect(found != 16_000, "16 models: the first device keeps its own copy, 7 others need one.")
    expect_close(found, 14_000, "bytes over the first link with 8 devices", rtol=0)


def check_ring_traffic(lesson: ModuleType) -> None:
    """A ring's link carries what stepladder.bench.ring_all_reduce.ring_bytes says."""
    for ways in (4, 2, 8):
        found = written(lesson.ring_link_bytes(6720, ways), "ring_link_bytes")
        wanted = ring_bytes(1680, 4, ways, 0)
        if ways == 4:
            expect(not is_times(found, wanted, 4), "4 × too large: a hop carries one part of 4.")
        expect_close(found, wanted, f"bytes each of {ways} ranks sends", rtol=0)
    expect(len(lesson.measure()) == 4, "measure gives four rows.")
