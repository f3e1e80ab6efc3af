"""DeepSpeed beside a lesson, where it is installed; nothing here needs it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Adam

from .lab_ranks import on_ranks

STAGES = (1, 2, 3)
BUILD_SECONDS = 600.0  # its first use compiles an extension


def train_with_deepspeed(
    make_model: Callable[[], nn.Module],
    make_rows: Callable[[int], tuple[Tensor, Tensor]],
    num_steps: int,
    rate: float,
) -> list[dict[str, Any]]:
    """A row a stage of DeepSpeed's ZeRO on two ranks, or one that says why there is none."""
    if importlib.util.find_spec("deepspeed") is None:
        return [{"who": "DeepSpeed (not installed: pip install deepspeed)"}]
    rows: list[dict[str, Any]] = []
    for stage in STAGES:
        given = (stage, make_model, make_rows, num_steps, rate)
        losses = on_ranks(train, 2, *given, timeout_seconds=BUILD_SECONDS)
        rows.append({"who": f"DeepSpeed, stage {stage}", "loss": losses[0]})
    return rows


def train(
    stage: int,
    make_model: Callable[[], nn.Module],
    make_rows: Callable[[int], tuple[Tensor, Tensor]],
    num_steps: int,
    rate: float,
) -> float:
    """The last loss on one rank."""
    deepspeed = importlib.import_module("deepspeed")
    model = make_model()
    settings = {
        "train_micro_batch_size_per_gpu": len(make_rows(0)[0]),
        "train_batch_size": len(make_rows(0)[0]) * dist.get_world_size(),
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,  # torch's own Adam, so that only ZeRO differs
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,  # it clips at 1 unless it is told not to
    }
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=Adam(model.parameters(), lr=rate), config=settings
    )
    loss = 0.0
    for step in range(num_steps):
        x, y = make_rows(step)
        found = (engine(x) - y).square().mean()
        engine.backward(found)
        engine.step()
        loss = found.item()
    return loss
