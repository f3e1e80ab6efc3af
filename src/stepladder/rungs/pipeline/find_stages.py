"""Where a model's blocks are split into pipeline stages, and what is sent between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.model import Anatomy, count_flops, meta_copy
from stepladder.model.traced_inputs import inputs_of
from stepladder.plan import SettledPlan
from stepladder.plan.settled.model_rules import empty_stages
from stepladder.rungs.data_parallel.batch_norm import BATCH_NORMS
from stepladder.world import World

from .crossings import EVERYWHERE, Crossing, find_crossings, last_writers
from .forward_record import ForwardRecord, within
from .stage_parts import find_parts, is_shareable


@dataclass(frozen=True, slots=True)
class Stages:
    """Which parts every stage holds, what crosses between them, and which stages this rank has."""

    blocks: tuple[str, ...]  # in the order they run
    chunks: tuple[range, ...]  # the blocks of every stage
    homes: Mapping[str, int]  # the stage of each other part with parameters, or EVERYWHERE
    crossings: tuple[tuple[Crossing, ...], ...]  # into every stage but the first
    owners: tuple[int, ...]  # each stage's rank on the pipeline axis
    index: int  # this rank's
    names: Mapping[str, Sequence[str]]  # of each part: a list may hold one block in several places
    results: Mapping[tuple[str, int], Any] = field(default_factory=dict)  # see ForwardRecord
    writers: Mapping[str, int] = field(default_factory=dict)  # of buffers: the stage that does last

    @property
    def own(self) -> list[int]:
        return [stage for stage, owner in enumerate(self.owners) if owner == self.index]

    @property
    def last(self) -> int:
        return len(self.chunks) - 1

    def of_part(self, name: str) -> int:
        """The stage that holds a block or another part, or EVERYWHERE."""
        if name in self.homes:
            return self.homes[name]
        place = self.blocks.index(name)
        return next(stage for stage, blocks in enumerate(self.chunks) if place in blocks)

    def holders(self, name: str) -> set[int]:
        """The ranks that hold a parameter of this name in the whole model."""
        for part in (*self.homes, *self.blocks):
            if any(within(other, name) for other in self.names[part]):
                stage = self.of_part(part)
                return set(self.owners) if stage == EVERYWHERE else {self.owners[stage]}
        return set(self.owners)  # of no part, or of all: any stage's code may read it

    def keeper(self, name: str) -> int:
        """The rank whose copy of a tensor, or of a module's extra state, is the whole model's."""
        held, writer = self.holders(name), self.writers.get(name)
        return min(held) if writer is None or len(held) == 1 else self.owners[writer]


def find_stages(
    module: nn.Module, anatomy: Anatomy, settled: SettledPlan, world: World, inputs: Any
) -> tuple[Stages, Anatomy]:
    """Cut the blocks so that stages cost alike; every rank comes to the same cut.

    Also returns the anatomy with the blocks, and the parts of its entry and exit, as they run.

    Args:
        inputs: of one row; a module that reads tokens needs none.
    """
    drawn = meta_copy(module)
    for part in drawn.modules():
        if isinstance(part, BATCH_NORMS):
            part.eval()  # one row has no batch statistics
    given = row_to_weigh(module, anatomy, inputs)
    try:
        parts = find_parts(drawn, anatomy, settled.num_stages, given)
    except ModelError:
        drawn.eval()  # where random numbers decide what runs (LayerDrop), they do so in training
        parts = find_parts(drawn, anatomy, settled.num_stages, given)
    record, blocks, others = parts
    if problem := empty_stages(settled, len(blocks)):
        raise problem
    chunks = tuple(settled.stage_split(weigh_blocks(drawn, parts, given)))
    shareable = partial(is_shareable, drawn, blocks)
    crossed = find_crossings(record, blocks, chunks, shareable)
    found = [(blocks, chunks, record.uses(), crossed, last_writers(record, chunks))]
    if world.mesh is not None:
        dist.broadcast_object_list(found, src=0)  # ranks may have been given other samples
    blocks, chunks, uses, (homes, crossings), writers = found[0]
    unused = dict.fromkeys((name for name in others if name not in homes), 0)
    owners = dict.fromkeys(range(settled.num_stages), 0)
    for rank in range(settled.layout.pipeline):
        owners.update(dict.fromkeys(settled.stages_of_rank(rank), rank))
    index = world.layout.place(world.place.rank)["pipeline"]
    stages = Stages(
        tuple(blocks), chunks, {**homes, **unused}, crossings, tuple(owners.values()), index,
        names_of(module, (*blocks, *homes, *unused)), record.results, writers,
    )  # fmt: skip
    return stages, as_run(anatomy, stages, uses)


def names_of(module: nn.Module, parts: Sequence[str]) -> dict[str, list[str]]:
    """All names of each part, its own first."""
    names = {part: [part] for part in parts}
    first = {id(module.get_submodule(part)): part for part in reversed(parts)}
    for name, one in module.named_modules(remove_duplicate=False):
        if id(one) in first and name not in names:
            names[first[id(one)]].append(name)
    return names


def as_run(anatomy: Anatomy, stages: Stages, uses: Mapping[str, set[int]]) -> Anatomy:
    """The anatomy with its blocks in the order they run, and each part at the end where it runs."""
    placed = [name for name, home in stages.homes.items() if home != EVERYWHERE]
    before = tuple(name for name in placed if uses.get(name, {0}) == {0})
    after = tuple(name for name in placed if uses.get(name) == {len(stages.blocks)})
    return replace(anatomy, entry=before, blocks=stages.blocks, exit=after)


def row_to_weigh(module: nn.Module, anatomy: Anatomy, inputs: Any) -> Any:
    """One row that the blocks are traced with."""
    try:
        return inputs_of(module, anatomy, None, inputs)
    except ModelError as unknown:
        raise PlanError(
            "layout.pipeline",
            f"stages are weighed on one row, and nothing says what {type(module).__name__} reads",
            "Give climb one batch: climb(model, sample=batch, ...).",
        ) from unknown


def weigh_blocks(
    module: nn.Module, parts: tuple[ForwardRecord, Sequence[str], Sequence[str]], inputs: Any
) -> list[float]:
    """FLOPs of every block; each carries what runs after it, and the first what runs before."""
    record, blocks, others = parts
    flops = count_flops(module, inputs, parts=(*blocks, *others)).parts
    costs = [float(flops.get(name, 0)) for name in blocks]
    for name, entered in record.uses().items():
        costs[max(min(entered) - 1, 0)] += flops.get(name, 0)
    return costs
