"""Byte sizes and degrees of parallelism of a settled plan, for the memory and time formulas."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.plan import SettledPlan
from stepladder.plan.precision import BYTES
from stepladder.plan.settled.settled_plan import CompileScope
from stepladder.plan.shared_constants import MASTER_STATE
from stepladder.planner.training_software import OURS, Software
from stepladder.workload import Facts


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the formulas read of a plan."""

    parameter: int  # bytes of one, as each rank holds it
    narrowed: int  # of a frozen one that only linears read
    gradient: int
    waiting: int  # of a gradient that stands beside the one it will be added to
    state: float  # what the optimizer keeps for one parameter
    matrix_state: float  # for one of a hidden matrix
    row_state: int  # for one row of a hidden matrix, whole on every rank
    work: int
    gather: int  # of a parameter on its way to a rank that needs it
    gathered: int  # of one that arrived
    reduce: int
    residual: int  # of the stream between blocks
    tensor: int
    context: int
    experts: int  # ranks among which a mixture's experts are divided
    shard: int  # ranks that share one copy of the training state
    gradient_ranks: int  # ranks whose gradients are added up
    zero: int
    wrapped: bool  # gathered and reduced block by block
    samples: int  # of a micro-batch
    micro_batches: int
    compiled: bool
    whole: bool  # the module is compiled in one piece, not block by block
    flash: bool
    fused_head: bool  # the head and its loss run as one, chunk by chunk
    channels_last: bool
    settled: SettledPlan
    software: Software

    @property
    def casts(self) -> bool:
        """Whether autocast narrows parameters in every pass: they are not gathered narrow."""
        return self.work < (self.gathered if self.wrapped else self.parameter)


def sizes_of(facts: Facts, settled: SettledPlan, software: Software = OURS) -> Sizes:
    plan, precision, layout = settled.plan, settled.plan.precision, settled.layout
    assert settled.micro_batch and settled.micro_batches
    work, store = BYTES[precision.work], BYTES[precision.store]
    masters: float
    moment: float
    parameter, masters = (work, store) if software.masters else (store, 0)
    moment = store
    if settled.masters:
        masters, moment = MASTER_STATE[plan.state]
    gradient = BYTES[software.gradient] if software.gradient else parameter
    if settled.sums_gradients_in_float32:
        gradient = BYTES["float32"]
    narrows = software is OURS and precision.mixed and precision.compute != "fp8"
    gathered = parameter if settled.slices else work  # autocast narrows what slices gather
    return Sizes(
        parameter=parameter,
        narrowed=work if narrows else parameter,
        gradient=gradient,
        waiting=waiting_bytes(settled, software, work, gradient),
        state=moment * plan.optimizer.moments + masters,
        matrix_state=moment * plan.optimizer.matrix_moments + masters,
        row_state=BYTES["float32"] if plan.optimizer.keeps_row_means else 0,
        work=work,
        gather=BYTES[software.gather] if software.gather else gathered,
        gathered=gathered,
        reduce=BYTES[precision.reduce],
        # Autocast adds 16-bit results into the fp32 that the stored embedding gave.
        residual=gathered if settled.sliced else max(work, parameter),
        tensor=layout.tensor,
        context=layout.context,
        experts=layout.experts,
        shard=settled.state_ranks,
        gradient_ranks=settled.gradient_ranks,
        zero=plan.zero,
        wrapped=settled.sliced,
        samples=settled.micro_batch,
        micro_batches=settled.micro_batches,
        compiled=bool(plan.compile),
        whole=compile_scope(facts, settled) == "module",
        flash=plan.attention != "plain",
        fused_head=software.fuses_head or settled.fuses_head(facts.vocab),
        channels_last=settled.channels_last,
        settled=settled,
        software=software,
    )


def waiting_bytes(settled: SettledPlan, software: Software, work: int, gradient: int) -> int:
    """Of a gradient that stands beside the one it will be added to, or copied into.

    torch accumulates in tensors of their own and copies their sum into what is reduced: DDP's
    buckets, which are there all the time, or a tensor for each block.
    """
    if settled.slices:  # the sums of 1, 2, 4, ... passes wait for as many more
        return gradient * ((settled.micro_batches or 1).bit_length() - 1)
    if software.adds_later:
        return work
    reduces = settled.gradient_ranks > 1 and not settled.sliced
    accumulates = reduces and (settled.micro_batches or 1) > 1
    own_buffer = software.bucket_bytes or software.adds_inside
    return gradient if accumulates and not own_buffer else 0


def compile_scope(facts: Facts, settled: SettledPlan) -> CompileScope:
    """What the run will hand to the compiler in one piece."""
    kinds = {
        (part.parameters, tuple((m.inner, m.columns, m.experts) for m in part.matmuls))
        for part in facts.parts[1:-1]
    }
    first = facts.parts[1].parameters if facts.num_blocks else 0
    alike = facts.num_blocks > 1 and len(kinds) == 1
    return settled.compile_scope(alike=alike, block_parameters=first)


def per_rank(sizes: Sizes) -> float:
    """Samples' worth of a block that one rank holds of a micro-batch."""
    return sizes.samples / sizes.tensor / sizes.context
