"""Checks of the custom kernel: its numbers, its gradients, and what torch is told of it."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import silu

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times

MISTAKES = (
    Mistake(
        "every program instance works on the first block",
        "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "tl.arange(0, BLOCK)",
        "only the first 256 numbers are right",
    ),
    Mistake(
        "the last, shorter block is never started",
        "instances = -(-x.numel() // BLOCK)",
        "instances = max(1, x.numel() // BLOCK)",
        "the last 88 of 600 numbers are not written",
    ),
    Mistake(
        "the gradient forgets that x stands in the gate and beside it",
        "(s + x * s * (1 - s))",
        "s",
        "x stands twice in x × sigmoid(x)",
    ),
    Mistake(
        "the stand-in has another shape than the result",
        "    return torch.empty_like(x)\n\n\ndef remember",
        "    return torch.empty_like(x.flatten())\n\n\ndef remember",
        "opcheck",
    ),
)


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.randn(*shape, generator=make).to(device) for _ in range(2))
    return x, y


def check_the_numbers(lesson: ModuleType) -> None:
    """The kernel gives silu(x) × y for every size, also where the last block is shorter."""
    for size in (100, 256, 512, 600):
        x, y = pair(size)
        found, wanted = lesson.swiglu(x, y), silu(x) * y
        good = (found - wanted).abs() < 1e-5
        expect(size < 300 or good[256:].any() or not good[:256].all(),
               "only the first 256 numbers are right: where does each instance begin?")  # fmt: skip
        if size == 600:
            expect(not good[:512].all() or good[512:].any(), "the last 88 of 600 numbers are not "
                   "written: round the number of instances up.")  # fmt: skip
        expect_close(found, wanted, f"silu(x) × y of {size} numbers", rtol=1e-6)
    matrix = pair(3, 40)
    expect_close(lesson.swiglu(*matrix), silu(matrix[0]) * matrix[1], "of a matrix", rtol=1e-6)


def check_the_gradients(lesson: ModuleType) -> None:
    """Gradients of x and y are torch's own."""
    x, y = (tensor.requires_grad_() for tensor in pair(50))
    found = torch.autograd.grad(lesson.swiglu(x, y).square().sum(), [x, y])
    out = (silu(x.detach()) * y.detach()).requires_grad_(False)
    wanted = torch.autograd.grad((silu(x) * y).square().sum(), [x, y])
    half = 2 * out * y.detach() * x.detach().sigmoid()
    forgot = torch.allclose(found[0], half, rtol=1e-4, atol=1e-6)
    expect(not forgot, "the gradient of x has one term of two: x stands twice in x × sigmoid(x).")
    for name, mine, theirs in zip("xy", found, wanted):
        expect_close(mine, theirs, f"the gradient of {name}", rtol=1e-5)


def check_torch_knows_it(lesson: ModuleType) -> None:
    """torch.library.opcheck finds that the kernel is what torch was told."""
    x, y = (tensor.requires_grad_() for tensor in pair(4, 10))
    try:
        torch.library.opcheck(lesson.swiglu, (x, y), test_utils=("test_schema", "test_faketensor"))
    except Exception as raised:
        first = str(raised).strip().splitlines()
        expect(False, f"opcheck: {first[0] if first else type(raised).__name__}")


def check_the_bytes(lesson: ModuleType) -> None:
    """One pass moves three tensors, two operations five."""
    one, two = (lesson.moved_bytes(1000, fused=fused) for fused in (True, False))
    expect_close(one, 12_000, "bytes moved by the kernel", rtol=0)
    expect(not is_times(two, 20_000, 0.8), "two operations: silu's result is written and read.")
    expect_close(two, 20_000, "bytes moved by two operations", rtol=0)
    expect(len(lesson.measure(2000)) == 2, "measure compares two ways.")
