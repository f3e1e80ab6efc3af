"""Every choice that training and forecasting derive from a plan: what is sliced, fused, compiled.

The number of ranks and the kind of device are known, so each question has one answer, and it is
worked out here. Rungs, the engine and the planner read these fields: a forecast and a run of the
same plan cannot disagree about what is sliced, fused or compiled. Where an answer also depends on
the model, it takes the few numbers it needs, which a module and its `Facts` both have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from stepladder.plan.layout import COPIES, SLICES, Layout
from stepladder.plan.plan import Plan
from stepladder.plan.shared_constants import FUSED_VOCABULARY, LARGE_BLOCK, PREFETCHED_BLOCKS
from stepladder.plan.stage_split import chunk_indices, cut_blocks

CompileScope = Literal["off", "blocks", "module"]


@dataclass(frozen=True, slots=True)
class SettledPlan:
    """A plan whose layout names every rank, on a known kind of device; made by `settle`."""

    plan: Plan
    device: str = "cuda"  # its kind, as torch names it

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    # Ranks

    @property
    def layout(self) -> Layout:
        return self.plan.layout

    @property
    def one_rank(self) -> bool:
        return self.layout.num_ranks == 1

    @property
    def whole_on_every_rank(self) -> bool:
        """Whether each rank has a whole copy of the module, and runs all of it."""
        layout = self.layout
        cut = layout.tensor * layout.pipeline * layout.context * layout.experts > 1
        return self.one_rank or (self.plan.zero < 2 and not cut)

    @property
    def data_ranks(self) -> int:
        """Ranks that read different samples."""
        return self.layout.data_ranks

    @property
    def gradient_ranks(self) -> int:
        """Ranks whose gradients are added up."""
        return prod(getattr(self.layout, axis) for axis in COPIES)

    @property
    def state_ranks(self) -> int:
        """Ranks that hold slices of one copy of the optimizer's state; 1 without ZeRO."""
        return prod(getattr(self.layout, axis) for axis in SLICES) if self.plan.zero else 1

    @property
    def sliced(self) -> bool:
        """Whether a rank holds slices of parameters and gradients, which blocks gather before use.

        Offloaded parameters are fetched by the same engine, even on one rank.
        """
        return self.plan.zero >= 2 and (self.state_ranks > 1 or self.offloads_parameters)

    @property
    def drops_gathered(self) -> bool:
        """Whether gathered parameters are dropped after forward and gathered again for backward."""
        return self.sliced and self.plan.zero == 3

    @property
    def gathered_ahead(self) -> int:
        """Blocks whose parameters are gathered ahead of the one that computes."""
        return PREFETCHED_BLOCKS if self.plan.prefetch is None else self.plan.prefetch

    @property
    def kept_gathered(self) -> int:
        """With ZeRO 3: last blocks that stay gathered from forward, since backward uses them first.

        By default the very last, which is gathered whatever the limit.
        """
        return self.plan.gathered or 1

    @property
    def most_gathered(self) -> int:
        """With ZeRO 3: blocks whose parameters a rank holds whole at a time, at most."""
        return max(self.kept_gathered, 1 + self.gathered_ahead)

    @property
    def slices_optimizer_only(self) -> bool:
        """Whether each rank updates a slice of parameters that it holds whole (ZeRO 1)."""
        return self.plan.zero == 1 and self.state_ranks > 1

    # Batch

    @property
    def micro_batch(self) -> int | None:
        """Rows of one micro-batch of one rank; None until the first batch decides it."""
        return self.plan.batch.micro

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches that each rank accumulates in a step; None: as many as the batch needs."""
        return self.plan.batch.micro_batches

    @property
    def deterministic(self) -> bool:
        """Whether every run gives the same bits."""
        return self.plan.exact.runs

    @property
    def lenient(self) -> bool:
        """Whether an operator without a deterministic algorithm runs all the same."""
        return self.plan.exact.free

    @property
    def slices(self) -> int:
        """Slices of the global batch whose gradients are added up in a fixed tree; 0: none."""
        return self.plan.exact.slices

    def rows_per_micro_batch(self, rows: int) -> int:
        """Rows of one micro-batch where a rank has `rows` rows of the batch."""
        return self.micro_batch or -(-rows // (self.micro_batches or 1))

    # Compute

    @property
    def masters(self) -> bool:
        """Whether the optimizer keeps fp32 masters of parameters stored in fewer bits."""
        return self.plan.precision.masters

    @property
    def sums_gradients_in_float32(self) -> bool:
        """Whether 16-bit gradients of several micro-batches are accumulated in float32."""
        batch = self.plan.batch
        if not self.masters or batch.micro is None or batch.micro_batches == 1:
            return False
        return batch.sequences != batch.micro * self.data_ranks

    @property
    def float8(self) -> bool:
        return self.plan.precision.compute == "fp8"

    def asks_for(self, kernel: str) -> bool:
        """Whether the plan asks for such kernels: "head", "layout" or "matmuls"."""
        kernels = self.plan.kernels
        return kernels if isinstance(kernels, bool) else kernel in kernels

    @property
    def channels_last(self) -> bool:
        """Whether images are stored with their channels innermost."""
        return self.asks_for("layout") and self.on_gpu

    @property
    def records_graphs(self) -> bool:
        """Whether a step is recorded once as a CUDA graph and replayed."""
        return self.plan.graphs

    @property
    def updates_in_backward(self) -> bool:
        """Whether a parameter is updated, and its gradient freed, as soon as that is there."""
        return self.plan.update == "backward"

    @property
    def takes_rows_at_once(self) -> bool:
        """Whether a step that ran out of memory cannot be taken again in smaller micro-batches."""
        return bool(self.slices) or self.updates_in_backward

    def fuses_head(self, num_classes: int) -> bool:
        """Whether an output layer of so many classes and its cross-entropy run as one."""
        return self.asks_for("head") and num_classes >= FUSED_VOCABULARY

    def compile_scope(self, *, alike: bool, block_parameters: int) -> CompileScope:
        """What is handed to the compiler in one piece.

        Args:
            alike: there are several blocks, and one's compiled code serves every other.
            block_parameters: of the first block.
        """
        if not self.plan.compile:
            return "off"
        if self.plan.compile == "whole":
            return "module"
        # A pipeline leaves a stage's forward in the middle.
        if self.plan.compile == "blocks" or self.layout.pipeline > 1:
            return "blocks"
        if not alike:  # the compiler would work again for each block, and give up after eight
            return "module"
        small = block_parameters < LARGE_BLOCK  # the host would be late for the next block's call
        return "module" if self.one_rank and self.on_gpu and small else "blocks"

    @property
    def compiles_loss(self) -> bool:
        """Whether a loss that is not fused with the head is compiled together with the module."""
        return self.plan.compile == "whole" and self.one_rank

    # Pipeline

    @property
    def num_stages(self) -> int:
        """Stages on all ranks together."""
        return self.layout.pipeline * self.plan.schedule.virtual

    @property
    def folded(self) -> bool:
        """Whether a rank that holds the first stage holds the last one too."""
        return self.layout.pipeline > 1 and self.plan.schedule.kind == "zero-bubble"

    def stage_split(self, costs: Sequence[float]) -> list[range]:
        """Which blocks each stage holds, where blocks cost so much; the ends are in their costs."""
        return cut_blocks(costs, self.num_stages)

    def stages_of_rank(self, index: int) -> list[int]:
        """The stages that a rank of the pipeline axis holds."""
        return chunk_indices(index, self.layout.pipeline, self.plan.schedule.virtual, self.folded)

    # Host memory

    @property
    def offloads_parameters(self) -> bool:
        return "parameters" in self.plan.offload

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the host updates a copy of its own; parameters there take their state along."""
        return "optimizer" in self.plan.offload and not self.offloads_parameters

    @property
    def offloads_activations(self) -> bool:
        return "activations" in self.plan.offload
