"""Checks of mixed precision: types, scales and clipping, then against the ladder itself."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stepladder import climb
from stepladder.labs.grading.check_words import Mistake, expect, expect_close

MISTAKES = (
    Mistake(
        "the loss is not scaled",
        "scaler.scale(loss).backward()",
        "loss.backward()",
        "went backward from the loss itself",
    ),
    Mistake(
        "gradients are clipped while they are still scaled",
        "    scaler.unscale_(optimizer)\n    nn.utils",
        "    nn.utils",
        "clipped while still scaled: unscale_ first",
    ),
    Mistake(
        "the model itself is cast to half precision",
        "        logits = model(x)\n",
        "        logits = model.to(dtype)(x.to(dtype))\n",
        "parameters became torch.float16: they stay float32",
    ),
    Mistake(
        "the loss is computed in half precision",
        "cross_entropy(logits.float(), y)",
        "cross_entropy(logits, y)",
        "the loss is torch.float16",
    ),
)


def data(width: int = 16) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(1)
    return torch.randn(32, width, generator=make), torch.randint(10, (32,), generator=make)


def check_types(lesson: ModuleType) -> None:
    """Products run in the narrow type; parameters and the loss stay float32."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        model, seen = lesson.network(16), list[torch.dtype]()
        model[0].register_forward_hook(lambda _, __, out, seen=seen: seen.append(out.dtype))
        loss = lesson.loss_of(model, *data(), dtype)
        kinds = {p.dtype for p in model.parameters()} - {torch.float32}
        expect(
            not kinds, f"parameters became {[*kinds, ''][0]}: they stay float32, autocast casts."
        )
        expect(seen == [dtype], f"a linear layer gave {seen}, expected {dtype}: autocast.")
        expect(loss.dtype == torch.float32, f"the loss is {loss.dtype}: sum in float32.")


class Watched(torch.amp.GradScaler):
    """torch's scaler, which remembers whether it was asked to scale."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=1024.0)
        self.scaled = False

    def scale(self, outputs: Any) -> Any:
        self.scaled = True
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        expect(self.scaled, "you went backward from the loss itself: use scaler.scale(loss).")
        super().unscale_(optimizer)


def check_clipping(lesson: ModuleType) -> None:
    """The step has a gradient norm of 1: clipped, after the scale was divided out."""
    model, scaler = lesson.network(16), Watched()
    before = [p.detach().clone() for p in model.parameters()]
    x, y = data()
    lesson.train_step(
        model, torch.optim.SGD(model.parameters(), lr=1.0), scaler, (100 * x, y), torch.float16
    )
    moved = [p.detach() - old for p, old in zip(model.parameters(), before)]
    norm = torch.nn.utils.get_total_norm(moved).item()
    expect(scaler.scaled, "you went backward from the loss itself: use scaler.scale(loss).")
    expect(
        abs(norm * 1024 - 1) > 0.01,
        f"the step's norm is {norm:.6f}, 1024 × too small: clipped while still scaled: unscale_ "
        "first.",
    )
    expect_close(norm, 1.0, "the norm of a clipped step", rtol=1e-4)


def check_the_ladder_gives_the_same(lesson: ModuleType) -> None:
    """Three steps end where stepladder.climb ends with the plans fp32, fp16 and bf16."""
    x, y = data()
    plain = None
    for word, dtype in lesson.TYPES.items():
        mine, theirs = lesson.network(16), lesson.network(16)
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=word == "fp16")
        losses = [lesson.train_step(mine, optimizer, scaler, (x, y), dtype) for _ in range(3)]
        run = climb(
            theirs, loss=cross_entropy, optimizer="sgd lr=0.1 clip=1", plan=word, device="cpu"
        )
        reports = [run.step((x, y)).loss for _ in range(3)]
        expect_close(losses, reports, f"{word}: three losses", rtol=1e-6)
        compare(mine, theirs, f"{word}: the weights")
        plain = plain or losses
        expect_close(losses, plain, f"{word}: losses against fp32", rtol=1e-2)


def compare(mine: nn.Module, theirs: nn.Module, what: str) -> None:
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        expect_close(one, other, what, rtol=1e-5)


def check_half_the_memory(lesson: ModuleType) -> None:
    """Layers' inputs take half the bytes in fp16 and bf16, to the byte."""
    model = lesson.network(16)
    wide, half, brain = (lesson.kept_bytes(model, data(), t) for t in lesson.TYPES.values())
    expect_close(half * 2, wide, "twice the bytes kept in fp16", rtol=0)
    expect_close(brain, half, "the bytes kept in bf16", rtol=0)
