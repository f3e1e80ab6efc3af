"""The module among the ranks that learn from other samples, by whichever engine can take it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from stepladder.plan import SettledPlan
from stepladder.world import World

from .ddp import replicate, replicate_by_blocks
from .gradient_sync import Exchange
from .zero2_zero3 import shard


def spread(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    settled: SettledPlan,
    world: World,
) -> Exchange:
    """Slice or copy a module, or a stage of it; its blocks are the units that are exchanged."""
    if world.mesh is None or not any(p.requires_grad for p in module.parameters()):
        return Exchange(module)
    plan = settled.plan
    if settled.sliced:
        return shard(module, blocks, settled, world)
    if settled.gradient_ways == 1:
        return Exchange(module)
    if plan.layout.tensor > 1 or plan.layout.pipeline > 1:
        return replicate_by_blocks(module, blocks, plan, world)
    return replicate(module, plan, world)


def home(settled: SettledPlan, world: World) -> torch.device:
    """Where parameters live between steps."""
    return torch.device("cpu") if settled.offloads_parameters else world.device
