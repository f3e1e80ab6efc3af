"""Where a model's blocks are split into pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import nn

from stepladder.errors import PlanError
from stepladder.model import Anatomy, meta_copy
from stepladder.model.tracing.describe import inputs_of
from stepladder.plan import SettledPlan
from stepladder.plan.settled.model_rules import empty_stages
from stepladder.rungs.data_parallel.batch_norm import BATCH_NORMS
from stepladder.world import World

from .order_ends import CallOrder, find_chain
from .trace_chain import REMEDY, Link, traced, within


@dataclass(frozen=True, slots=True)
class Stages:
    """Which blocks every stage holds, and which stages this rank."""

    chunks: tuple[range, ...]  # of every stage, in the order blocks run
    owners: tuple[int, ...]  # each stage's rank on the pipeline axis
    index: int  # this rank's
    links: tuple[Link, ...]

    @property
    def own(self) -> list[int]:
        return [stage for stage, owner in enumerate(self.owners) if owner == self.index]

    @property
    def last(self) -> int:
        return len(self.chunks) - 1

    def folds_ties(self, anatomy: Anatomy) -> bool:
        """Whether the first and the last stage, of one rank, share a matrix."""
        return anatomy.tied and self.owners[0] == self.owners[-1]

    def holders(self, anatomy: Anatomy, name: str) -> set[int]:
        """The ranks that hold a parameter of this name in the whole model."""
        for part in anatomy.entry:
            if within(part, name):
                return {self.owners[0]}
        for part in anatomy.exit:
            if within(part, name):
                return {self.owners[self.last]}
        for stage, blocks in enumerate(self.chunks):
            if any(within(anatomy.blocks[index], name) for index in blocks):
                return {self.owners[stage]}
        return set(self.owners)  # of no part: any stage's code may read it


def find_stages(
    module: nn.Module, anatomy: Anatomy, settled: SettledPlan, world: World, inputs: Any
) -> tuple[Stages, Anatomy]:
    """Cut the blocks so that stages cost alike; every rank comes to the same cut.

    Also returns the anatomy with the parts of its entry and exit as they run.

    Args:
        inputs: of one row; a module that reads tokens needs none.
    """
    if problem := empty_stages(settled, len(anatomy.blocks)):
        raise problem if anatomy.blocks else PlanError(problem.field, problem.problem, REMEDY)
    drawn = meta_copy(module)
    for part in drawn.modules():
        if isinstance(part, BATCH_NORMS):
            part.eval()  # one row has no batch statistics
    given = inputs_of(module, anatomy, None, inputs)
    try:
        anatomy, costs = measure_blocks(drawn, anatomy, given)
    except Exception:
        drawn.eval()  # where random numbers decide what runs (LayerDrop), they do so in training
        anatomy, costs = measure_blocks(drawn, anatomy, given)
    anatomy, links = find_chain(drawn, anatomy, given)
    found = [(settled.stage_split(costs), anatomy.entry, anatomy.exit)]
    if world.mesh is not None:
        dist.broadcast_object_list(found, src=0)  # ranks may have been given other samples
    chunks, entry, exit = found[0]
    owners = dict.fromkeys(range(settled.num_stages), 0)
    for rank in range(settled.layout.pipeline):
        owners.update(dict.fromkeys(settled.stages_of_rank(rank), rank))
    index = world.layout.place(world.place.rank)["pipeline"]
    stages = Stages(tuple(chunks), tuple(owners.values()), index, links)
    return stages, replace(anatomy, entry=entry, exit=exit)


def measure_blocks(module: nn.Module, anatomy: Anatomy, inputs: Any) -> tuple[Anatomy, list[float]]:
    """The anatomy with its ends as they run, and FLOPs of every block; the ends carry what comes
    before and after."""
    calls = CallOrder(anatomy.blocks)
    with calls.recording(module, (*anatomy.entry, *anatomy.exit)):
        parts = traced(module, inputs).parts
    anatomy = calls.order(anatomy)
    costs = [float(parts.get(name, 0)) for name in anatomy.blocks]
    costs[0] += sum(parts.get(name, 0) for name in anatomy.entry)
    costs[-1] += sum(parts.get(name, 0) for name in anatomy.exit)
    return anatomy, costs
