"""The parts that each pipeline rank holds, split so that stages cost about the same.

The split weighs each block by its FLOPs, and the first and last also carry entry and exit: a large
head makes the last stage shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from stepladder.errors import PlanError
from stepladder.plan import Layout, Schedule
from stepladder.plan.stage_split import chunk_indices, cut_blocks, split_blocks
from stepladder.workload import Facts, Part

from .training_software import Cuts


@dataclass(frozen=True, slots=True)
class Stage:
    """The parts of one rank, from its first to its last."""

    blocks: tuple[tuple[Part, int], ...]  # each kind and how many
    entry: Part | None = None
    exit: Part | None = None
    num_chunks: int = 1  # virtual stages: chunks of consecutive blocks

    @property
    def num_blocks(self) -> int:
        return sum(count for _, count in self.blocks)

    @property
    def ends(self) -> tuple[Part, ...]:
        return tuple(part for part in (self.entry, self.exit) if part is not None)

    def parameters(self, tensor: int, tied: int = 0) -> float:
        """Parameters on one tensor-parallel rank; a tied matrix on both ends counts once."""
        blocks = sum(rank_parameters(part, tensor) * count for part, count in self.blocks)
        ends = sum(rank_parameters(part, tensor) for part in self.ends)
        return blocks + ends - (tied / tensor if len(self.ends) == 2 else 0)

    def trained(self, tensor: int, tied: int = 0) -> float:
        """Of those, the trainable ones."""
        blocks = sum(trained_parameters(part, tensor) * count for part, count in self.blocks)
        ends = sum(trained_parameters(part, tensor) for part in self.ends)
        # A tied matrix that is frozen is not among them, and need not be taken out again.
        twice = len(self.ends) == 2 and trained_parameters(self.ends[1], 1) >= tied
        return blocks + ends - (tied / tensor if twice else 0)

    def on_other_ranks(self, experts: int) -> float:
        """Parameters of experts that other ranks of the experts axis hold."""
        every = sum(part.expert_parameters * count for part, count in self.blocks)
        every += sum(part.expert_parameters for part in self.ends)
        return every * (1 - 1 / experts)

    def narrowed(self, tensor: int) -> float:
        """Frozen parameters that autocast lets be held in 16 bits."""
        blocks = sum(narrowed_parameters(part, tensor) * count for part, count in self.blocks)
        return blocks + sum(narrowed_parameters(part, tensor) for part in self.ends)

    @property
    def packed(self) -> int:
        """Frozen parameters that are bytes, which no axis but the shard axis divides."""
        blocks = sum(part.packed_parameters * count for part, count in self.blocks)
        return blocks + sum(part.packed_parameters for part in self.ends)

    def matrices(self, tensor: int) -> float:
        """Trained parameters of hidden matrices on one tensor-parallel rank."""
        blocks = sum(rank_matrices(part, tensor) * count for part, count in self.blocks)
        return blocks + sum(rank_matrices(part, tensor) for part in self.ends)

    @property
    def matrix_rows(self) -> int:
        """Rows of those matrices, whichever rank holds them."""
        blocks = sum(part.matrix_rows * count for part, count in self.blocks)
        return blocks + sum(part.matrix_rows for part in self.ends)


def rank_parameters(part: Part, tensor: int, experts: int = 1) -> float:
    """Parameters of a part on a rank that holds so much of each matrix, and so many experts."""
    here = (part.parameters - part.whole_parameters) / tensor + part.whole_parameters
    return here - part.expert_parameters * (1 - 1 / experts)


def rank_matrices(part: Part, tensor: int) -> float:
    return (part.matrices - part.whole_matrices) / tensor + part.whole_matrices


def narrowed_parameters(part: Part, tensor: int) -> float:
    whole = part.narrowed_whole_parameters
    return (part.narrowed_parameters - whole) / tensor + whole


def trained_parameters(part: Part, tensor: int, experts: int = 1) -> float:
    whole = part.whole_parameters - part.frozen_whole_parameters
    here = (part.parameters - part.frozen_parameters - whole) / tensor + whole
    return max(here - part.expert_parameters * (1 - 1 / experts), 0.0)


def stages_of(
    facts: Facts, layout: Layout, schedule: Schedule, cuts: Cuts = "cost"
) -> tuple[Stage, ...]:
    """What each rank of the pipeline axis holds."""
    folded = schedule.kind == "zero-bubble"
    return split_stages(facts, layout.pipeline, schedule.virtual, folded, cuts)


@lru_cache(maxsize=256)
def split_stages(
    facts: Facts, pipeline: int, virtual: int, folded: bool, cuts: Cuts = "cost"
) -> tuple[Stage, ...]:
    if pipeline == 1:
        return (Stage(kinds(facts.blocks), facts.entry, facts.exit),)
    num_chunks = pipeline * virtual
    every, chunks, stages = facts.blocks, chunk_blocks(facts, num_chunks, cuts), []
    for index in range(pipeline):
        own = chunk_indices(index, pipeline, virtual, folded)
        blocks = tuple(every[i] for chunk in own for i in chunks[chunk])
        entry = facts.entry if 0 in own else None
        exit_ = facts.exit if num_chunks - 1 in own else None
        stages.append(Stage(kinds(blocks), entry, exit_, virtual))
    alike = {stage: stage for stage in stages}  # equal stages are one object, forecast once
    return tuple(alike[stage] for stage in stages)


@lru_cache(maxsize=256)  # several schedules cut the same number of stretches
def chunk_blocks(facts: Facts, num_chunks: int, cuts: Cuts = "cost") -> list[range]:
    if not facts.num_blocks:
        problem = f"{facts.name} shows no list of blocks, and what each stage would hold is unknown"
        raise PlanError("layout.pipeline", problem, "Forecast it with pipeline=1.")
    if cuts == "even":
        num_blocks = facts.num_blocks
        return [
            range(num_blocks - each.stop, num_blocks - each.start)
            for each in reversed(split_blocks(num_blocks, num_chunks))
        ]
    if cuts == "crossing":
        return crossing_blocks(facts, num_chunks)
    costs = [block.flops for block in facts.blocks]
    costs[0] += facts.entry.flops
    costs[-1] += facts.exit.flops
    return cut_blocks(costs, num_chunks)


def crossing_blocks(facts: Facts, num_chunks: int) -> list[range]:
    """A stage ends with the block whose products carry the sum so far past the stage's share."""
    costs = [sum(m.flops for m in part.matmuls) for part in (*facts.blocks, facts.exit)]
    edges, done = [0], 0
    for index, cost in enumerate(costs[:-1]):
        done += cost
        full = done > sum(costs) * len(edges) / num_chunks
        if full and len(edges) < num_chunks:
            edges.append(index + 1)
    edges += [facts.num_blocks] * (num_chunks + 1 - len(edges))
    return [range(first, last) for first, last in pairwise(edges)]


def kinds(blocks: tuple[Part, ...]) -> tuple[tuple[Part, int], ...]:
    counted: dict[Part, int] = {}
    for block in blocks:
        counted[block] = counted.get(block, 0) + 1
    return tuple(counted.items())


def in_flight(schedule: Schedule, pipeline: int, index: int, micro_batches: int) -> float:
    """Micro-batches whose activations a rank holds at once."""
    if pipeline == 1:
        return 1
    match schedule.kind:
        case "gpipe":
            return micro_batches
        case "1f1b":
            return min(pipeline - index, micro_batches)
        case "interleaved":
            warm_up = (pipeline - index - 1) * 2 + (schedule.virtual - 1) * pipeline + 1
            return min(warm_up / schedule.virtual, micro_batches)
    return min(
        pipeline, micro_batches
    )  # zero-bubble: as much as the first stage of 1f1b, on every rank


def bubble_share(schedule: Schedule, pipeline: int) -> float:
    """Idle time of the pipeline, in units of a rank's time for one micro-batch."""
    idle = pipeline - 1
    if schedule.kind == "interleaved":
        return idle / schedule.virtual
    if schedule.kind == "zero-bubble":
        # Weight gradients fill the rest. What is left is the first micro-batch's way down: half a
        # rank's forward, a third of its work, on each other rank; from two micro-batches a rank.
        return idle / 6
    return idle
