"""The loops that are timed against each other: hand-written ones and stepladder's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

import stepladder as sl
from real_sizes import Case

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Hand:
    """The loop a user would write."""

    def __init__(
        self,
        case: Case,
        *,
        mode: str | None = None,
        options: dict[str, Any] | None = None,
        channels_last: bool = False,
    ) -> None:
        self.layout = torch.channels_last if channels_last else torch.preserve_format
        self.module = copy.deepcopy(case.module).to(DEVICE)
        if channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )
        self.loss = torch.compile(
            lambda batch: case.plain_loss(self.module, batch), mode=mode, options=options
        )

    def step(self, batch: Any) -> torch.Tensor:
        batch = tree_map(self.move, batch)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            loss = self.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def move(self, one: torch.Tensor) -> torch.Tensor:
        there = one.to(DEVICE, non_blocking=True)
        return there.to(memory_format=self.layout) if one.dim() == 4 else there


class Ours:
    """stepladder, with a plan or with "auto"."""

    def __init__(self, case: Case, plan: str) -> None:
        module = copy.deepcopy(case.module)
        self.run = sl.climb(
            module, loss=case.loss, optimizer="adamw lr=1e-4 clip=1 wd=0.01", plan=plan,
            sample=case.batch,
        )  # fmt: skip

    def step(self, batch: Any) -> Callable[[], float]:
        report = self.run.step(batch)
        return lambda: report.loss


LOOPS: dict[str, Callable[[Case], Any]] = {
    "hand": Hand,
    "hand max": lambda case: Hand(case, mode="max-autotune-no-cudagraphs"),
    "hand channels-last": lambda case: Hand(case, channels_last=True),
}


def make_loop(arm: str, case: Case, budget: str) -> Any:
    """The loop of that name, or ours with a plan's text.

    Args:
        arm: "hand +NAME +NAME" is the hand-written loop with these options of Inductor switched on.
        budget: a word for "auto" that says how long trials may take.
    """
    return (
        LOOPS[arm](case) if arm in LOOPS else Ours(case, f"{arm} {budget}" * (arm == "auto") or arm)
    )


def read(loss: Any) -> float:
    return float(loss()) if callable(loss) else float(loss)
