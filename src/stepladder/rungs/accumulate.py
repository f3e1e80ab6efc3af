"""Rung: gradient accumulation: a large batch in little memory, micro-batch by micro-batch.

Each micro-batch's mean loss is weighted by its share of the global batch's valid targets: see
[Note: a mean of means is wrong] in loss.py. The size of a micro-batch may change between batches;
the gradients do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.kernels.fused_head import FusedHead
from stepladder.loss import Loss
from stepladder.loss.left_out_targets import refuse_left_out
from stepladder.loss.loss_terms import LossTerms, times, without_gradient
from stepladder.loss.weighting import weighting_events
from stepladder.model.call_module import call
from stepladder.model.forward_state import state_restored
from stepladder.plan.layout import COPIES, DATA
from stepladder.rungs.data_parallel.gradient_sync import GradientSync
from stepladder.world import World

from .forward_effects.written_buffers import RunningStatistics
from .loss_leaves import check_leaves, shards_refused
from .loss_module import LossModule, with_loss
from .loss_trial import LossTrial
from .observe_outputs import Observe, observed
from .output_tensors import tensors_in, zero_loss
from .trial_copy import autocast_rounding, widened

Context = Callable[[], AbstractContextManager[Any]]
SplitBatch = Callable[[Batch], AbstractContextManager[Batch]]
Scale = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class Accumulate:
    """Turns a batch into gradients, micro-batch by micro-batch."""

    gradient_sync: GradientSync
    loss: Loss
    forward_context: Context  # precision, offloading
    world: World
    read_inputs: Callable[[Any], Any] = lambda inputs: inputs  # casts them as the module needs
    micro: int | None = None  # rows of a micro-batch; None: all of the rank's
    split_batch: SplitBatch = nullcontext  # this rank's part of each sequence
    whole_outputs: Context = nullcontext  # in which the module returns what its author wrote
    head: FusedHead | None = None  # that is fused with the loss, where this rank has it
    observe: Observe | None = None  # while somebody wants to see outputs
    total: int | torch.Tensor = 0  # valid targets of the last global batch
    row_chunks: int = 1  # that each row of the last batch was cut into
    weight_total: float | torch.Tensor = 1.0  # what the last global batch weighed in the loss
    loss_module: LossModule | None = None  # where the loss is a module
    notes: list[str] = field(default_factory=list)  # events of the run
    statistics: Sequence[Any] = ()  # of the module, or of each stage, and of routers
    keys: tuple[int, ...] = ()  # the seed and the step, which a batch's random numbers follow from
    leaves_checked: bool = False  # whether it is known what else than outputs the loss reads
    off: str = ""  # why no step is recorded any more
    terms: LossTerms = field(default_factory=LossTerms)  # of the last batch
    # Of the last batch: rows and weighted loss of each micro-batch on this rank, on the device.
    parts: list[tuple[int, torch.Tensor]] = field(default_factory=list)

    def __call__(self, batch: Batch, scale: Scale) -> torch.Tensor:
        """Add the batch's gradients to `.grad`; return the global batch's mean loss."""
        batch = self.loss.weigh(batch)
        counted, self.parts = self.start_count(batch), []
        self.terms.start()
        with self.split_batch(batch) as mine, ExitStack() as around:
            padded = self.padded_micro_batches(batch, self.weigh_chunk(batch, mine))
            for one in self.statistics:
                around.enter_context(one.batch(len(padded)))
            for index, (part, counts) in enumerate(padded):
                with ExitStack() as context:
                    for one in self.statistics:
                        context.enter_context(one.micro_batch(part.num_rows if counts else 0))
                    last = index == len(padded) - 1
                    context.enter_context(self.gradient_sync.around_micro_batch(last))
                    mean = self.forward(part)
                    counted()
                    self.terms.add(weight := self.weight(part) if counts else 0.0)
                    weighted = times(mean, weight)
                    # DDP and FSDP average over ranks, and a sum is needed: see gradient_sync.py.
                    scaled = scale(times(weighted, self.gradient_sync.ways))
                    self.gradient_sync.before_backward(scaled, last)
                    if scaled.requires_grad:  # else a recording stands for this pass
                        scaled.backward()
                self.parts.append((part.num_rows, weighted.detach()))
        return self.sum_losses()

    def sum_losses(self) -> torch.Tensor:
        """The loss of the global batch, of which this rank has its micro-batches' parts."""
        loss = sum((more for _, more in self.parts[1:]), start=self.parts[0][1].float())
        if self.world.layout.num_ranks > 1:
            loss = loss.clone()  # summed in place, and a part keeps its own
        return self.sum_over_ranks(loss, *COPIES)

    def sum_over_ranks(self, loss: torch.Tensor, *axes: str) -> torch.Tensor:
        """The batch's loss; its terms are summed with it."""
        return self.terms.sum(loss, self.world, *axes, possible=self.loss.kind == "other")

    def follow_statistics(self, module: nn.Module) -> None:
        """Have buffers that the forward pass writes be those of whole batches."""
        state = with_loss(module, self.loss_module)
        self.statistics = [RunningStatistics(state, self.world, self.notes)]

    @property
    def has_outputs(self) -> bool:
        """Whether this rank has what the module returns."""
        return True

    def weight(self, part: Batch) -> float | torch.Tensor:
        """A micro-batch's share of the global batch."""
        if self.loss.sums:
            return 0.0 if part.idle else 1.0
        count, total = self.loss.count(part), self.weight_total
        if self.loss.weighs_rows:
            count /= self.row_chunks
        if isinstance(total, torch.Tensor):
            return count / total.where(total > 0, 1.0).float()
        return count / (total if total > 0 else 1.0)

    def weigh_chunk(self, batch: Batch, mine: Batch) -> Batch:
        """This rank's part of each sequence, weighed: it has all rows, and a part of each."""
        self.row_chunks = 1 if mine is batch else self.world.layout.context
        return self.loss.weigh(mine)

    def forward(self, part: Batch) -> torch.Tensor:
        """The mean loss of one micro-batch; zero, with zero gradients, where no target is valid."""
        with self.forward_context():
            loss = self.forward_loss(part)
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ModelError(
                "loss", "does not depend on any trainable parameter", "Unfreeze one, or check loss."
            )
        return loss

    def forward_loss(self, part: Batch) -> torch.Tensor:
        counts = self.loss.count(part)
        if counts and not self.observe and (whole := self.checked_loss(part).with_module):
            return whole(self.read_inputs(part.inputs), part.targets)
        outputs = self.outputs(part)
        if self.observe:
            self.observe(outputs, part)
        self.loss.takes(outputs)  # refused on all ranks, not only on those with a valid target
        return self.mean(outputs, part) if counts else self.zero(outputs, part)

    def checked_loss(self, part: Batch) -> Loss:
        """The loss; a function of the user's is refused if it reads what it must not.

        Compiled with the module it would hide what it reads. So it is looked at before, in a pass
        over two rows that is neither compiled nor counted. One that fails on two rows is not
        compiled.
        """
        known = self.leaves_checked or self.loss.kind != "other" or self.loss.with_module is None
        if known or not torch.is_grad_enabled():
            return self.loss
        device, rows = self.world.device, part.rows(slice(0, 2))
        state = with_loss(self.gradient_sync.module, self.loss_module)
        kept = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with torch.compiler.set_stance("force_eager"), kept, state_restored(state):
            try:
                self.mean(self.outputs(rows), rows)
            except ModelError:
                raise
            except Exception:  # a foreign loss may fail in any way
                self.loss = replace(self.loss, with_module=None)
        return self.loss

    def mean(self, outputs: Any, part: Batch) -> torch.Tensor:
        """The loss of a micro-batch; the first one is refused if it reads what it must not."""
        with shards_refused(self.gradient_sync.module):
            loss, terms = self.loss.split(outputs, part.targets)
        if torch.is_grad_enabled() and not self.leaves_checked and self.loss.kind == "other":
            module = self.gradient_sync.module
            module = module.module if isinstance(module, DistributedDataParallel) else module
            cut = self.micro is not None or self.world.layout.data_ranks > 1
            check_leaves(loss, tensors_in(outputs), module, self.loss_module, cut=cut)
            self.leaves_checked = True
            self.notes += without_gradient(terms)
        self.terms.compute(terms)
        if terms and self.loss.with_module:  # out of which nothing but their sum would come
            self.loss = replace(self.loss, with_module=None)
            self.notes.append("loss: not compiled with the module, because its terms are reported")
        return loss

    def zero(self, outputs: Any, part: Batch) -> torch.Tensor:
        """The loss of a micro-batch without a valid target, refused where others are."""
        if not self.leaves_checked and self.loss.kind == "other":
            try:
                self.mean(outputs, part)
            except ModelError:  # another rank, which has a target, refuses it too
                raise
            except Exception:  # a loss may do anything where it has nothing to do
                pass
            self.terms.computed = {}
        return zero_loss((outputs, self.loss.parameters()))

    def module_outputs(self, part: Batch) -> Any:
        """What the module returns, on ranks that have it; all ranks call it together."""
        return self.outputs(part)

    def outputs(self, part: Batch) -> Any:
        return call(self.gradient_sync.module, self.read_inputs(part.inputs))

    def micro_batches(self, batch: Batch) -> list[Batch]:
        micro = self.micro or batch.num_rows
        if micro >= batch.num_rows:
            return [batch]
        return [batch.rows(slice(at, at + micro)) for at in range(0, batch.num_rows, micro)]

    def padded_micro_batches(self, batch: Batch, mine: Batch) -> list[tuple[Batch, bool]]:
        """Every micro-batch, and whether it counts.

        Where a batch does not divide evenly, a rank may have one micro-batch fewer than others,
        which would wait for it in a collective; so it repeats its last one, with weight 0.
        """
        parts, ways = self.micro_batches(mine), self.world.layout.data_ranks
        most = batch.rows_of_fullest(ways)
        idle = -(-most // (self.micro or most)) - len(parts) if ways > 1 else 0
        return [(part, not mine.idle) for part in parts] + [(parts[-1], False)] * idle

    def start_count(self, batch: Batch) -> Callable[[], None]:
        """Have ranks add up their counts during the first forward pass; a call waits for them."""
        weight, tokens = self.loss.count(batch), self.loss.tokens(batch)
        if self.world.layout.data_ranks == 1:
            self.weight_total, self.total = weight, tokens
            return lambda: None
        mine = torch.tensor([weight, tokens], dtype=torch.float64, device=self.world.device)
        wait = self.world.sum_async(mine, *DATA)

        def counted() -> None:
            self.weight_total, self.total = wait()

        return counted

    def settle_loss(self, batch: Batch) -> None:
        """Before a batch that will be cut: find out how its pieces must be weighted."""
        if self.loss.known:
            return
        layout, pieces = self.world.layout, self.micro_batches(batch)
        if layout.data_ranks == layout.context == len(pieces) == 1:
            return
        trial, smallest = self.loss_trial(), min(piece.num_rows for piece in pieces)
        with self.whole_outputs():  # pieces weigh the same, fused or not
            self.loss = trial.find(batch, smallest)
        self.notes += weighting_events(self.loss.weighting, trial.untried)
        refuse_left_out(self.loss.weighting, batch, self.world.gather_counts)

    def loss_trial(self) -> LossTrial:
        module = with_loss(self.gradient_sync.module, self.loss_module)
        if isinstance(self.gradient_sync.module, FSDPModule):
            # Parameters are gathered in 16 bits, and need autocast.
            return LossTrial(module, self.loss, self.world, self.wide_outputs, self.rounding())
        return LossTrial(module, self.loss, self.world, self.trial_outputs)

    def trial_outputs(self, part: Batch) -> Any:
        """The module's outputs, in full precision where the precision is autocast's."""
        with self.forward_context(), torch.autocast(self.world.device.type, enabled=False):
            return self.outputs(part)

    def wide_outputs(self, part: Batch) -> Any:
        """The module's outputs as a step computes them, for a loss that is computed in float32."""
        with self.forward_context():
            mixed = torch.is_autocast_enabled(self.world.device.type)
            outputs = self.outputs(part)
        return widened(outputs) if mixed else outputs

    def rounding(self) -> float:
        """The unit in the last place of what a step computes in."""
        with self.forward_context():
            return autocast_rounding(self.world.device.type)

    def evaluated_weight(self) -> float:
        return float(self.total if self.loss.sums else self.weight_total)

    @torch.no_grad()
    def evaluate(self, batch: Batch, observe: Observe | None = None) -> tuple[torch.Tensor, float]:
        """The batch's loss without gradients, and its weight in a mean over several batches.

        Args:
            observe: is given the outputs of every micro-batch that counts, in the rows' order.
        """
        batch = self.loss.weigh(batch)
        self.start_count(batch)()
        loss = torch.zeros((), device=self.world.device)
        with self.split_batch(batch) as mine:
            for part, counts in self.padded_micro_batches(batch, self.weigh_chunk(batch, mine)):
                with observed(self, observe if counts else None):
                    loss += self.forward(part) * (self.weight(part) if counts else 0.0)
        return self.world.sum(loss, *COPIES), self.evaluated_weight()
