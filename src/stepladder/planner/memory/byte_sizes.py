"""A settled plan's byte widths and ways, read once for memory and time alike."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.plan import Layout, Plan
from stepladder.plan.precision import BYTES
from stepladder.planner.training_software import OURS, Software


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the formulas read of a plan."""

    parameter: int  # bytes of one, as each rank holds it
    gradient: int
    waiting: int  # of a gradient that stands beside the one it will be added to
    state: int  # what the optimizer keeps for one parameter
    work: int
    gather: int  # of a parameter on its way to a rank that needs it
    reduce: int
    residual: int  # of the stream between blocks
    tensor: int
    context: int
    shard: int  # ranks that share one copy of the training state
    zero: int
    wrapped: bool  # gathered and reduced block by block
    samples: int  # of a micro-batch
    passes: int
    compiled: bool
    whole: bool  # small blocks are compiled with all around them
    flash: bool
    fuses: bool  # the head and its loss, where the vocabulary is large
    software: Software


def sizes_of(plan: Plan, software: Software = OURS) -> Sizes:
    precision, layout = plan.precision, plan.layout
    assert plan.batch.micro and plan.batch.passes
    work, store = BYTES[precision.work], BYTES[precision.store]
    parameter, masters = (work, store) if software.masters else (store, 0)
    moment = store
    if precision.masters:
        masters = moment = BYTES["float32"]
    wrapped = plan.zero >= 2
    return Sizes(
        parameter=parameter,
        gradient=BYTES[software.gradient] if software.gradient else parameter,
        waiting=work if software.adds_later else 0,
        state=moment * plan.optimizer.moments + masters,
        work=work,
        gather=BYTES[software.gather] if software.gather else work,
        reduce=BYTES[precision.reduce],
        # Autocast adds 16-bit results into the fp32 that the stored embedding gave.
        residual=work if wrapped else max(work, parameter),
        tensor=layout.tensor,
        context=layout.context,
        shard=state_ways(layout) if plan.zero else 1,
        zero=plan.zero,
        wrapped=wrapped,
        samples=plan.batch.micro,
        passes=plan.batch.passes,
        compiled=plan.compile,
        whole=plan.compile and layout.num_ranks == 1,
        flash=plan.attention != "plain",
        fuses=plan.kernels and layout.num_ranks == 1,
        software=software,
    )


def state_ways(layout: Layout) -> int:
    """Ranks that share one copy of the state: slices of a sequence see the same parameters."""
    return layout.shard * layout.context


def per_rank(sizes: Sizes) -> float:
    """Samples' worth of a block that one rank holds of a micro-batch."""
    return sizes.samples / sizes.tensor / sizes.context
