"""The moments of a step that may be its memory peak.

    answer    forward ends: autocast still holds its copy of every weight, the logits become a loss
    loss      backward begins: the gradients of the logits stand beside everything forward kept
    head      the head's weight gets its gradient
    blocks    from the last to the first: those before keep what their depth keeps, the one at work
              stands in full beside what its backward makes, those behind are gone but for gradients
    entry     all gradients, and what the entry kept
    step      gradients alone, and the last of them still travelling

Along a run of equal blocks memory changes in a straight line, so only its ends are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stepladder.plan import Plan, Recompute
from stepladder.plan.shared_constants import MUON_ROUND_BYTES
from stepladder.planner.pipeline_stages import Stage, in_flight, rank_parameters, trained_parameters
from stepladder.workload import ElementsByType, Facts, Part

from .byte_sizes import Sizes, per_rank
from .communication_buffers import communication_buffers, largest_block, weight_bytes
from .logits import backward_logit_bytes, forward_logit_bytes, logit_gradient_bytes
from .recompute_depths import RecomputeShares
from .saved_activations import (
    block_shares,
    composed_scratch,
    mean_bytes,
    recomputed_bytes,
    saved_bytes,
)

# A round of muon's matrices, as many times as it is there at once: as slices in float32 and as they
# are sent, as a stack, as two iterates with two products between them.
ROUND_COPIES = 7


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes by owner at one moment of a step, without what stays all the time."""

    activations: float = 0.0
    logits: float = 0.0
    communication: float = 0.0
    temporary: float = 0.0
    gradients: float = 0.0
    working: float = 0.0
    stale: float = 0.0  # freed before, in pieces too small for what is asked for now
    name: str = ""

    @property
    def total(self) -> float:
        return self.transient + self.gradients

    @property
    def transient(self) -> float:
        """Without what stays for the optimizer."""
        owned = self.activations + self.logits + self.communication
        return owned + self.temporary + self.working


def orthogonalise_bytes(stage: Stage, sizes: Sizes) -> float:
    """What muon makes of a round of matrices: the stack, products of it, and the next ones."""
    if sizes.settled.plan.optimizer.name != "muon":
        return 0.0
    share = stage.matrices(1) / sizes.shard / sizes.tensor  # at most: copies may share them too
    return ROUND_COPIES * min(share * sizes.work, MUON_ROUND_BYTES)


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Equal blocks that follow each other, in bytes of one rank and one micro-batch."""

    count: int
    kept: float  # by one, on average over their depths
    full: float  # by one at work
    scratch: float
    copies: float  # of one's weights, as autocast keeps them with its activations
    saved_copies: float  # on average over their depths: what is recomputed casts again
    cached_copies: (
        float  # when forward ends: what is recomputed selectively leaves none in the cache
    )
    parameters: float
    fresh: float  # a gradient on its way to the others


def rank_moments(
    facts: Facts, plan: Plan, stage: Stage, index: int, sizes: Sizes
) -> tuple[list[Moment], float]:
    """The moments of one rank, and the bytes of activations that wait in host memory."""
    stage_moments = StageMoments(facts, plan, stage, sizes)
    waiting = stage_moments.saved_by_all
    flight = in_flight(plan.schedule, plan.layout.pipeline, index, sizes.micro_batches)
    behind = waiting * (flight - 1)  # of micro-batches whose turn comes later
    moments = [replace(m, activations=m.activations + behind) for m in stage_moments.moments()]
    away = 0.0
    if sizes.settled.offloads_activations:
        largest = max((max(run.kept, run.full) for run in stage_moments.runs), default=0.0)
        near = min(2 * largest, waiting * flight)  # one leaves or returns while one is used
        away = waiting * flight - near
        moments = [replace(m, activations=min(m.activations, near)) for m in moments]
    moments.append(step_moment(stage_moments, moments, sizes))
    batch = (
        facts.sample_bytes * sizes.samples * sizes.micro_batches
    )  # there from the start of the step
    return [replace(m, temporary=m.temporary + batch) for m in moments], away


def step_moment(stage_moments: StageMoments, before: list[Moment], sizes: Sizes) -> Moment:
    """The optimizer's update; flat gradient copies do not fit into freed, fragmented memory."""
    beside = sizes.software.update_bytes * stage_moments.trained / sizes.shard
    beside += orthogonalise_bytes(stage_moments.stage, sizes)
    update = Moment(
        communication=stage_moments.buffers.last, temporary=beside,
        gradients=stage_moments.all_gradients, working=stage_moments.gathered, name="step",
    )  # fmt: skip
    if sizes.software.drops_gradients:  # a tensor for each parameter, when nothing is gathered
        return replace(update, communication=0.0, working=0.0)
    stale = max(m.activations + m.logits + m.temporary for m in before) if beside else 0.0
    return replace(update, stale=stale)


class StageMoments:
    """The moments of one stage's backward, from the loss to the entry."""

    def __init__(self, facts: Facts, plan: Plan, stage: Stage, sizes: Sizes) -> None:
        self.facts, self.stage, self.sizes = facts, stage, sizes
        self.runs = list(runs_of(plan, stage, sizes))
        self.entry_kept = saved_bytes(stage.entry, sizes) if stage.entry else 0.0
        self.exit_kept = saved_bytes(stage.exit, sizes) if stage.exit else 0.0
        self.buffers = communication_buffers(facts, stage, sizes)
        self.gathered = gathered_bytes(facts, stage, sizes) if sizes.wrapped else 0.0
        self.kept_gathered = kept_bytes(stage, sizes) if sizes.wrapped else 0.0
        # One rank alone drops gradients after each step and makes them anew in its first pass;
        # later passes find them. Several ranks have buckets that stay.
        kept = not (sizes.wrapped and sizes.software.drops_gradients)
        self.lasting = sizes.micro_batches > 1 or (sizes.gradient_ranks > 1 and kept)
        per_gradient = sizes.gradient + sizes.waiting
        self.per_parameter = per_gradient / (sizes.shard if sizes.wrapped else 1)
        elsewhere = 0.0 if sizes.wrapped else stage.on_other_ranks(sizes.experts)
        self.trained = stage.trained(sizes.tensor, facts.tied_parameters) - elsewhere
        self.all_gradients = self.trained * self.per_parameter
        if sizes.settled.updates_in_backward:  # those of one part at a time
            ends = [rank_parameters(part, sizes.tensor) for part in stage.ends]
            most = max([*ends, *(run.parameters for run in self.runs)], default=0.0)
            self.all_gradients, self.per_parameter = most * self.per_parameter, 0.0
        # The head's gradient of a tied matrix waits in autograd, to be added to the entry's.
        whole = self.lasting and not sizes.wrapped and len(stage.ends) == 2
        self.tied = facts.tied_parameters * sizes.gradient / sizes.tensor if whole else 0.0

    @property
    def saved_by_all(self) -> float:
        return self.entry_kept + self.exit_kept + sum(r.kept * r.count for r in self.runs)

    def moments(self) -> Iterator[Moment]:
        yield from self.loss_moments()
        yield from self.block_moments()
        if self.stage.entry is not None:
            stream = self.stage.entry.output * per_rank(self.sizes) * self.sizes.residual
            fresh = 0.0 if not self.lasting else fresh_bytes(self.stage.entry, self.sizes)
            fresh += self.tied  # the sum of both
            scratch = scratch_bytes(self.stage.entry.scratch, self.sizes)
            copies = copies_bytes(self.stage.entry, self.sizes)
            making = self.stage.entry.making
            if making is not None:  # the largest weight's gradient has a moment of its own
                beside = making.num_bytes(self.sizes.work, self.sizes.residual)
                kept = self.entry_kept + beside * per_rank(self.sizes)
                yield self.moment(kept, stream + fresh, copies, self.all_gradients, "entry")
                fresh = 0.0
            yield self.moment(
                self.entry_kept, stream + scratch + fresh, copies, self.all_gradients, "entry"
            )

    def loss_moments(self) -> Iterator[Moment]:
        ends = sum(copies_bytes(part, self.sizes) for part in self.stage.ends)
        every = ends + sum(run.cached_copies * run.count for run in self.runs)
        saved = ends + sum(run.saved_copies * run.count for run in self.runs)
        gradients = self.all_gradients if self.lasting else 0.0
        exit_ = self.stage.exit
        logits = (0.0, 0.0, 0.0)
        fresh = 0.0
        if exit_ is not None:
            counts = (forward_logit_bytes, backward_logit_bytes, logit_gradient_bytes)
            answer, worst, last = (count(self.facts, self.sizes) for count in counts)
            logits = answer, worst, last
            fresh = fresh_bytes(exit_, self.sizes) + scratch_bytes(exit_.scratch, self.sizes)
        kept, buffers = self.saved_by_all, self.buffers.head
        working = self.gathered + self.kept_gathered + saved
        held = Moment(kept, 0.0, buffers, 0.0, gradients, working)
        gathered = self.gathered + self.kept_gathered + every
        yield replace(held, logits=logits[0], working=gathered, name="answer")
        yield replace(held, logits=logits[1], name="loss")
        yield replace(held, logits=logits[2], temporary=fresh, name="head")

    def block_moments(self) -> Iterator[Moment]:
        exit_ = trained_parameters(self.stage.exit, self.sizes.tensor) if self.stage.exit else 0.0
        made = exit_ * self.per_parameter
        kept, copies = self.saved_by_all - self.exit_kept, 0.0
        if self.stage.entry:
            copies = copies_bytes(self.stage.entry, self.sizes)
        copies += sum(run.saved_copies * run.count for run in self.runs)
        for run in reversed(self.runs):
            for before in sorted({run.count - 1, 0}, reverse=True):
                gone = run.count - before
                behind = made + (gone - 1) * run.parameters * self.per_parameter
                moment = self.moment(
                    kept - gone * run.kept + run.full,
                    run.scratch + run.fresh,
                    copies - gone * run.saved_copies + run.copies,
                    self.all_gradients if self.lasting else behind,
                    "blocks",
                )
                first = run is self.runs[-1] and gone == 1  # what stayed gathered is still there
                more = self.kept_gathered if first else 0.0
                yield replace(moment, working=moment.working + more)
            made += run.count * run.parameters * self.per_parameter
            kept -= run.count * run.kept
            copies -= run.count * run.saved_copies

    def moment(
        self, kept: float, temporary: float, copies: float, gradients: float, name: str
    ) -> Moment:
        working = self.gathered + copies
        buffers, temporary = self.buffers.block, temporary + self.tied
        return Moment(kept, 0.0, buffers, temporary, gradients, working, name=name)


def runs_of(plan: Plan, stage: Stage, sizes: Sizes) -> Iterator[BlockRun]:
    for part, count, depths in depths_in_order(plan.recompute, stage, sizes):
        kept, copies = mean_bytes(part, depths, sizes), copies_bytes(part, sizes)
        scratch = scratch_bytes(part.scratch, sizes) + composed_scratch(part, sizes)
        if depths.kept < 1.0:
            scratch = max(scratch, scratch_bytes(part.passing, sizes))
        scratch *= sizes.tensor if part.whole else 1
        yield BlockRun(
            count, kept, max(kept, recomputed_bytes(part, depths, sizes)),
            scratch, copies, depths.kept * copies, (1 - depths.cheap) * copies,
            trained_parameters(part, sizes.tensor, sizes.experts), fresh_bytes(part, sizes),
        )  # fmt: skip


def depths_in_order(
    recompute: Recompute, stage: Stage, sizes: Sizes
) -> Iterator[tuple[Part, int, RecomputeShares]]:
    """Each run of blocks with its depths; where they alternate, each block by itself."""
    index = 0
    for part, count in stage.blocks:
        if recompute.kind != "every":
            yield part, count, block_shares(part, recompute, stage.num_blocks, sizes)
            continue
        for _ in range(count):
            again = recompute.repeats(index)
            yield part, 1, RecomputeShares(0.0, 0.0, 1.0) if again else RecomputeShares()
            index += 1


def scratch_bytes(scratch: ElementsByType, sizes: Sizes) -> float:
    return max(scratch.num_bytes(sizes.work, sizes.residual), 0.0) * per_rank(sizes)


def copies_bytes(part: Part, sizes: Sizes) -> float:
    """What autocast casts of a part: the weights of its products, not tables and norms."""
    if not sizes.casts:
        return 0.0
    cast = [m for m in part.matmuls if m.experts == 1]  # products by groups are none of autocast's
    return min(sum(m.weights for m in cast), part.parameters) * (sizes.work / sizes.tensor)


def fresh_bytes(part: Part, sizes: Sizes) -> float:
    """One weight's gradient on its way to what is stored; autocast's copy of it is gone by then."""
    return 0.0 if sizes.wrapped else weight_bytes(part, sizes)  # sliced: among what travels


def gathered_bytes(facts: Facts, stage: Stage, sizes: Sizes) -> float:
    """Parameters gathered for use, whichever block is at work."""
    if sizes.zero == 2:  # once, and kept until backward is done
        held = stage.parameters(sizes.tensor, facts.tied_parameters)
        return (held - stage.on_other_ranks(sizes.experts)) * sizes.gathered
    ends = sum(rank_parameters(part, sizes.tensor) for part in stage.ends)
    gathered = 1 + sizes.settled.gathered_ahead  # one works, the others arrive
    return (ends + gathered * largest_block(stage, sizes)) * sizes.gathered


def kept_bytes(stage: Stage, sizes: Sizes) -> float:
    """Blocks that stay gathered from forward to backward, beyond those gathered for use."""
    if sizes.zero == 2:
        return 0.0
    most, usual = sizes.settled.most_gathered, 1 + sizes.settled.gathered_ahead
    more = max(min(most, stage.num_blocks) - usual, 0)
    return more * largest_block(stage, sizes) * sizes.gathered
