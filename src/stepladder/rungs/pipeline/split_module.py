"""A rank's stages of a pipeline: cut out of the module before the move, run after all other rungs.

The split comes early: FLOPs of stages are counted on the module as it was given, and other stages'
parts are dropped before anything is moved to a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stepladder.errors import PlanError
from stepladder.model import Anatomy
from stepladder.plan import SettledPlan
from stepladder.plan.layout import COPIES
from stepladder.plan.settled.model_rules import sliced_fold
from stepladder.planner.pipeline_stages import in_flight
from stepladder.rungs.data_parallel.broadcast_parameters import buckets
from stepladder.rungs.data_parallel.distribute import wrap_data_parallel
from stepladder.rungs.data_parallel.gradient_sync import GradientSync
from stepladder.rungs.memory.recompute_budget import BlockCost
from stepladder.world import World

from .find_stages import Stages
from .pipeline import Pipeline
from .stage_module import StageModule, keep_own
from .tied_parameters import TiedParameters, find_tied


@dataclass(frozen=True, slots=True)
class RankStages:
    """This rank's stages."""

    module: nn.Module  # what is left of the user's
    anatomy: Anatomy
    stages: Stages
    chunks: Sequence[StageModule]
    tied: TiedParameters
    shared: bool = False  # on some rank of the pipeline two stages share a parameter

    @property
    def ends(self) -> bool:
        """Whether this rank holds the last stage, which computes the loss."""
        return self.stages.last in self.stages.own

    def costs(
        self, every: Sequence[BlockCost] | None, settled: SettledPlan
    ) -> list[BlockCost] | None:
        """What this rank's blocks keep for backward, for all micro-batches that wait for it."""
        if every is None:
            return None
        stages, schedule = settled.layout.pipeline, settled.plan.schedule
        waiting = in_flight(schedule, stages, self.stages.index, settled.micro_batches or stages)
        own = [index for stage in self.stages.own for index in self.stages.chunks[stage]]
        return [every[index].times(round(waiting)) for index in sorted(own)]

    def run(self, settled: SettledPlan, world: World, **passes: Any) -> Pipeline:
        """Spread each stage among the ranks that see other samples, and line them up."""
        if self.shared:
            gradient_syncs = [
                GradientSync(self.module, 1, partial(sum_gradients_after, self.module, world))
            ]
        else:
            gradient_syncs = [
                wrap_data_parallel(chunk, chunk.blocks, settled, world) for chunk in self.chunks
            ]
        ways = torch.tensor(
            max(gradient_sync.ways for gradient_sync in gradient_syncs), device=world.device
        )
        # A stage without anything to train is not spread; the loss is for those that are.
        dist.all_reduce(ways, dist.ReduceOp.MAX, group=world.group("pipeline"))
        return Pipeline(
            gradient_sync=GradientSync(self.module, int(ways)),
            module=self.module,
            chunks=self.chunks,
            stages=self.stages,
            schedule=settled.plan.schedule,
            gradient_syncs=gradient_syncs,
            tied=self.tied,
            world=world,
            head_tried=not settled.asks_for("head"),
            **passes,
        )


@contextmanager
def sum_gradients_after(module: nn.Module, world: World, last: bool) -> Iterator[None]:
    """Around a batch, after which the copies' gradients are added up.

    Where two stages of a rank share a parameter, torch's engines would take each stage's as one of
    its own. They too would wait for the last micro-batch. All ranks of the pipeline do it, since
    torch's engines average, and the loss is scaled for all of them alike.
    """
    yield
    group = world.group(*COPIES)
    if group.size() > 1:
        found = [p.grad for p in module.parameters() if p.grad is not None]
        for bucket in buckets(found):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat, group=group)
            for gradient, total in zip(bucket, flat.split([g.numel() for g in bucket])):
                gradient.copy_(total.view(gradient.shape))


def split(
    module: nn.Module, anatomy: Anatomy, stages: Stages, settled: SettledPlan, world: World
) -> RankStages:
    """Leave in the module what this rank's stages hold."""
    if problem := sliced_fold(settled, tied=anatomy.tied):
        raise problem
    tied = find_tied(module, stages, world)
    chunks = keep_own(module, anatomy, stages)
    here = torch.tensor(float(share_parameters(chunks)), device=world.device)
    shared = bool(world.sum(here, "pipeline"))
    if shared and settled.sliced:
        zero, schedule = settled.plan.zero, settled.plan.schedule
        raise PlanError(
            "schedule",
            f"with {schedule} several stages of a rank use one part, and zero{zero} slices each "
            "stage by itself",
            "Use zero1, or 1f1b.",
        )
    return RankStages(module, anatomy, stages, chunks, tied, shared)


def share_parameters(chunks: Sequence[StageModule]) -> bool:
    """Whether a parameter is in several of a rank's stages."""
    held = [id(parameter) for chunk in chunks for parameter in set(chunk.parameters())]
    return len(held) > len(set(held))
