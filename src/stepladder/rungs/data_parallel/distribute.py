"""The module among the ranks that learn from other samples, by whichever engine can take it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from stepladder.plan import Plan
from stepladder.plan.layout import COPIES
from stepladder.world import World

from .ddp import replicate, replicate_by_blocks
from .gradient_sync import Exchange
from .zero2_zero3 import shard


def spread(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], plan: Plan, world: World
) -> Exchange:
    """Slice or copy a module, or a stage of it; its blocks are the units that are exchanged."""
    if world.mesh is None or not any(p.requires_grad for p in module.parameters()):
        return Exchange(module)
    if is_sliced(plan, world):
        return shard(module, blocks, plan, world)
    if world.group(*COPIES).size() == 1:
        return Exchange(module)
    if world.layout.tensor > 1 or world.layout.pipeline > 1:
        return replicate_by_blocks(module, blocks, plan, world)
    return replicate(module, plan, world)


def is_sliced(plan: Plan, world: World) -> bool:
    """Whether a rank holds only slices of its parameters."""
    several = world.layout.shard * world.layout.context > 1
    return plan.zero >= 2 and (several or "parameters" in plan.offload)


def home(plan: Plan, world: World) -> torch.device:
    """Where parameters live between steps."""
    return torch.device("cpu") if "parameters" in plan.offload else world.device
