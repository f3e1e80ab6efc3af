"""One rank of each kind, rehearsed: ranks that differ only in the rows they read need the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stepladder.plan import Layout, Plan
from stepladder.plan.refit import spread
from stepladder.record import Rehearsal

from .fake_world import Broadcasts
from .rehearse_step import rehearse


def rehearse_kinds(
    model: nn.Module,
    plan: str | Plan,
    *,
    sample: Any,
    loss: str | Callable[[Any, Any], torch.Tensor] | None = None,
    ranks: int = 1,
    device: str = "cuda",
    limit_bytes: int | None = None,
) -> tuple[Rehearsal, ...]:
    """The rehearsal of one rank of each kind, that which needs most first.

    The first rank of a group holds the largest slice; pipeline stages differ, and those between
    the first and the last are alike.

    >>> import torch
    >>> from stepladder.rehearse import rehearse_kinds
    >>> batch = torch.randn(8, 64), torch.randint(0, 16, (8,))
    >>> model = torch.nn.Linear(64, 16)
    >>> found = rehearse_kinds(model, "zero3", sample=batch, loss="cross_entropy", ranks=2)
    >>> [one.rank for one in found]
    [0]
    """
    read = Plan.parse(plan) if isinstance(plan, str) else plan
    layout = spread(read, ranks).layout.settle(ranks)
    broadcasts = Broadcasts()
    found = [
        rehearse(
            model,
            read,
            sample=sample,
            loss=loss,
            ranks=ranks,
            rank=rank,
            device=device,
            limit_bytes=limit_bytes,
            broadcasts=broadcasts,
        )
        for rank in ranks_of_kinds(layout)
    ]
    return tuple(sorted(found, key=lambda one: -one.reserved_bytes))


def ranks_of_kinds(layout: Layout) -> list[int]:
    """The first rank of the first pipeline stage, of one in the middle, and of the last."""
    stages = sorted({0, layout.pipeline // 2, layout.pipeline - 1})
    return [stage * (layout.num_ranks // layout.pipeline) for stage in stages]
