"""Checks of the memory dashboard: owners to the byte, the peak where it is."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import nn

from stepladder.labs.equipment.saved_bytes import Kept
from stepladder.labs.grading.check_words import Mistake, expect, expect_close
from stepladder.measure import MemoryMeter

MISTAKES = (
    Mistake(
        "the optimizer's state is looked for before it exists and never again",
        "for entry in self.optimizer.state.values()",
        "for entry in list(self.optimizer.state.values())[:0]",
        "Adam's two moments",
    ),
    Mistake(
        "gradients that are None are counted",
        "if p.grad is not None]",
        "]",
        "a gradient may be None",
    ),
    Mistake(
        "the peak is read at the end of the step",
        'max(self.moments, key=lambda moment: moment["total"])',
        "self.moments[-1]",
        "the end of a step is not its peak",
    ),
)


def board_of(lesson: ModuleType, *, steps: int, late: bool = False) -> tuple[Any, Any, Any]:
    model = lesson.network(16, 3)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        board = lesson.step(model, optimizer, torch.randn(64, 16), late=late)
    return board, model, optimizer


def check_owners(lesson: ModuleType) -> None:
    """Owners are told apart, before the first step and after it."""
    model = lesson.network(16, 3)
    optimizer = torch.optim.Adam(model.parameters())
    board = lesson.Dashboard(model, optimizer, Kept(model))
    weights = sum(p.nbytes for p in model.parameters())
    try:
        found = board.owners()
    except AttributeError as raised:
        expect("NoneType" not in str(raised), "before backward a gradient may be None: skip those.")
        raise
    expect_close(found["parameters"], weights, "bytes of the parameters", rtol=0)
    expect(not found["gradients"], "gradients are counted before there are any.")
    model(torch.randn(64, 16)).sum().backward()
    optimizer.step()
    found = board.owners()
    expect(found["optimizer"], "after a step Adam's two moments are there: look every time.")
    expect_close(found["gradients"], weights, "bytes of the gradients", rtol=0)


def check_the_meter_finds_the_same(lesson: ModuleType) -> None:
    """Parameters, gradients and optimizer are those of stepladder.measure.MemoryMeter."""
    board, model, optimizer = board_of(lesson, steps=2)
    x = torch.randn(64, 16)
    with MemoryMeter(model, optimizer, torch.device("cpu")) as meter:
        model(x).square().mean().backward()
        optimizer.step()
    last = board.moments[-1]
    for owner in ("parameters", "gradients", "optimizer"):
        expect_close(last[owner], getattr(meter.memory, owner), f"bytes of the {owner}", rtol=0)
    kept = max(moment["activations"] for moment in board.moments)
    # The input, three tanh results (the last is also what is squared).
    expect_close(kept, 4 * x.nbytes, "bytes of the activations at their most", rtol=0)


def check_the_peak(lesson: ModuleType) -> None:
    """The peak stands at the turn from forward to backward, and late clearing raises it."""
    board, model, _ = board_of(lesson, steps=2)
    peak = board.peak()
    most = max(moment["total"] for moment in board.moments)
    expect(peak["total"] == most, f"{peak['total']} bytes at '{peak['moment']}', and {most} were "
           "held: the end of a step is not its peak.")  # fmt: skip
    expect(peak["moment"] in ("loss", "forward 2", "back 2"), f"the peak is at {peak['moment']}.")
    expect(not board.moments[0]["gradients"], "gradients stand at the start: clear them first.")
    late, *_ = board_of(lesson, steps=2, late=True)
    more = late.peak()["total"] - peak["total"]
    expect_close(more, sum(p.nbytes for p in model.parameters()), "what clearing late adds", rtol=0)


def check_measure(lesson: ModuleType) -> None:
    """Both ways are drawn, moment by moment."""
    expect(len(lesson.measure()) > 20, "measure gives each moment of both ways.")
    expect(isinstance(lesson.network(), nn.Sequential), "the network is a sequence of layers.")
