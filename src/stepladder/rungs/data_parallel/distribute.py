"""How a module is wrapped for data parallelism: DDP, FSDP2, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from stepladder.plan import SettledPlan
from stepladder.plan.layout import COPIES
from stepladder.rungs.exact_ranks.gradient_tree import keep_whole_gradients
from stepladder.world import World

from .ddp import replicate, replicate_by_blocks
from .gradient_sync import GradientSync
from .zero2_zero3 import shard


def wrap_data_parallel(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    settled: SettledPlan,
    world: World,
) -> GradientSync:
    """Shard or replicate a module, or a pipeline stage of it, block by block."""
    trained = any(p.requires_grad for p in module.parameters())
    if not trained or (world.mesh is None and not settled.slices):
        return GradientSync(module)
    plan = settled.plan
    if settled.slices and not settled.sliced:
        group = world.group(*COPIES) if settled.gradient_ranks > 1 else None
        return keep_whole_gradients(module, group)
    if settled.sliced:
        return shard(module, blocks, settled, world)
    if settled.gradient_ranks == 1:
        return GradientSync(module)
    cut = max(plan.layout.tensor, plan.layout.pipeline, plan.layout.experts) > 1
    if cut or settled.sums_gradients_in_float32:
        return replicate_by_blocks(module, blocks, settled, world)
    return replicate(module, plan, world)


def parameter_device(settled: SettledPlan, world: World) -> torch.device:
    """Where parameters live between steps."""
    return torch.device("cpu") if settled.offloads_parameters else world.device
