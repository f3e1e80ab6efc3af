"""Checks of FLOPs: the formula against two counters, to the last operation."""

from __future__ import annotations

from types import ModuleType

import torch
from torch.utils.flop_counter import FlopCounterMode

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written
from stepladder.model import count_flops

MISTAKES = (
    Mistake(
        "a multiply and its add are counted as one",
        "return 2 * m * k * n",
        "return m * k * n",
        "2 × too small: a multiply and an add are two operations",
    ),
    Mistake(
        "backward is counted as much work as forward",
        "return 3 * forward",
        "return 2 * forward",
        "backward is two products for each one of forward",
    ),
    Mistake(
        "attention's scores are forgotten",
        "return linears + scores + mixing",
        "return linears",
        "attention is missing",
    ),
    Mistake(
        "recomputed work raises the MFU",
        "return step_flops(forward) / seconds",
        "return (step_flops(forward) + recomputed) / seconds",
        "recomputed work is not the model's",
    ),
)


def check_product(lesson: ModuleType) -> None:
    """A product of matrices has two operations for each number multiplied."""
    found = written(lesson.product_flops(3, 5, 7), "product_flops")
    expect(found != 105, "105 for (3, 5) @ (5, 7), 2 × too small: a multiply and an add are two "
           "operations.")  # fmt: skip
    expect_close(found, 210, "(3, 5) @ (5, 7)", rtol=0)


def check_block_and_step(lesson: ModuleType) -> None:
    """A block's forward and backward are what stepladder's and torch's counters count."""
    for batch, length, width in ((2, 8, 16), (1, 64, 16)):
        block, x = lesson.Block(width), torch.randn(batch, length, width, requires_grad=True)
        counted = count_flops(block, x)
        with FlopCounterMode(display=False) as theirs:
            block(x).sum().backward()
        about = f"a block of width {width}, {batch} × {length} tokens"
        forward = lesson.block_flops(batch, length, width)
        linears = 2 * batch * length * 12 * width**2
        expect(forward != linears, f"{about}: {forward}; attention is missing: its scores and its "
               "mixing have no weight, but they are products.")  # fmt: skip
        expect_close(forward, counted.forward, f"forward of {about}", rtol=0)
        step = written(lesson.step_flops(forward), "step_flops")
        expect(step != 2 * forward, "a step is not 2 forwards: backward is two products for each "
               "one of forward.")  # fmt: skip
        expect_close(step, theirs.get_total_flops(), f"a step of {about}", rtol=0)


def check_mfu(lesson: ModuleType) -> None:
    """MFU counts what the mathematics needs, and not what is done twice."""
    plain = written(lesson.mfu(10**9, 0.01, 1e12), "mfu")
    again = lesson.mfu(10**9, 0.01, 1e12, recomputed=10**9)
    expect(again == plain, f"{plain:.2f} became {again:.2f}: recomputed work is not the model's, "
           "and doing it twice is no merit.")  # fmt: skip
    expect(not is_times(plain, 0.3, 1 / 3), "3 × too small: the step's FLOPs, not forward's.")
    expect_close(plain, 0.3, "the MFU of 1 GFLOP forward in 10 ms on 1 TFLOP/s")


def check_six_n(lesson: ModuleType) -> None:
    """6N counts only 6 of 6 + length / width parts: 40 % are missing at a length of 4 widths."""
    for row in lesson.measure(width=32, tokens=128):
        expect_close(row["6N's share"], 6 / (6 + row["length"] / 32), "6N's share of a step")
    short = 6 * 12 * 64**2 * 256 / lesson.step_flops(lesson.block_flops(1, 256, 64))
    expect_close(short, 0.6, "6N's share at a length of 4 widths")
