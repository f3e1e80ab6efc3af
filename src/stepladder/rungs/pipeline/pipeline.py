"""Rung: pipeline parallel: consecutive blocks on different ranks (torch.distributed.pipelining).

Every rank of a pipeline has the whole batch; only activations between blocks are sent. torch runs
the schedule. The last stage computes the loss of each micro-batch, weighted by its share of the
global batch as everywhere else, so that gradients add up to those of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import DataError
from stepladder.loss import NO_LOSS
from stepladder.model.call_module import call
from stepladder.model.training_mode import copy_mode
from stepladder.plan import Schedule
from stepladder.plan.layout import COPIES
from stepladder.rungs.accumulate import Accumulate, Scale
from stepladder.rungs.data_parallel.gradient_sync import GradientSync
from stepladder.rungs.forward_effects.call_counters import CallCounters
from stepladder.rungs.forward_effects.written_buffers import RunningStatistics
from stepladder.rungs.loss_module import with_loss
from stepladder.rungs.loss_trial import LossTrial
from stepladder.rungs.observe_outputs import Observe, observed

from .find_stages import Stages
from .probe_stages import probe_stages, received
from .schedule import Event, Stage, StageOutputs, cause, make_schedule, micro_batch_size
from .stage_module import StageModule
from .stages_trial import make_trial
from .tied_parameters import TiedParameters

Shape = tuple[tuple[tuple[int, ...], torch.dtype], ...]


@dataclass(slots=True, kw_only=True)
class Pipeline(Accumulate):
    """Turns a batch into gradients, stage by stage."""

    module: nn.Module  # this rank's part of the model
    chunks: Sequence[StageModule]  # this rank's stages
    stages: Stages
    schedule: Schedule
    gradient_syncs: Sequence[GradientSync]  # of each chunk
    tied: TiedParameters
    events: list[Event] | None = None  # a list, while somebody wants to know when stages work
    stage_outputs: dict[Shape, tuple[StageOutputs, ...]] = field(default_factory=dict)
    ready: tuple[Any, Any, list[Stage]] | None = None  # for which batches, the schedule, its stages
    scale: Scale = lambda loss: loss
    seen: Tensor | None = None  # the loss so far, on the last stage
    counters: list[CallCounters] = field(default_factory=list)  # of each chunk
    probed: list[Any] | None = None  # the last stage's outputs, while the loss is checked
    head_tried: bool = True  # whether it is known if the head may be fused; on every stage
    loss_checked: bool = False  # whether the loss is known to read outputs and targets alone

    def __post_init__(self) -> None:
        for chunk in self.chunks:
            self.counters.append(CallCounters(chunk))
            chunk.run = partial(self.counters[-1].called_by, self.run)

    def follow_statistics(self, module: nn.Module) -> None:
        """As everywhere, for each of this rank's stages."""
        for chunk in self.chunks:
            loss = self.loss_module if chunk.index == self.stages.last else None
            follow = RunningStatistics(with_loss(chunk, loss), self.world, self.notes)
            self.statistics = [*self.statistics, follow]
            assert chunk.run is not None
            chunk.run = partial(run_followed, follow, chunk.run)

    @property
    def has_outputs(self) -> bool:
        return self.stages.last in self.stages.own

    @property
    def checks_loss(self) -> bool:
        """Whether the loss must still be looked at, and this batch has one."""
        return not self.loss_checked and self.loss is not NO_LOSS

    @property
    def tries_head(self) -> bool:
        """Whether the last stage must still be tried without its head."""
        return not self.head_tried and self.loss is not NO_LOSS

    @property
    def group(self) -> dist.ProcessGroup:
        return self.world.group("pipeline")

    def __call__(self, batch: Batch, scale: Scale) -> Tensor:
        """Add the batch's gradients to `.grad`; return the global batch's mean loss."""
        batch = self.loss.weigh(batch)
        with self.split_batch(batch) as mine, ExitStack() as around:
            parts = self.micro_batches(self.weigh_chunk(batch, mine))
            self.begin(batch, scale)
            schedule = self.prepare(parts)
            for one in self.statistics:
                around.enter_context(one.batch(len(parts)))
            for gradient_sync in self.gradient_syncs:
                around.enter_context(gradient_sync.around_micro_batch(True))
            try:
                # Only which micro-batch it is travels with the schedule: see `Stage`.
                schedule.step(
                    target=torch.arange(len(parts)) if self.has_outputs else None,
                    return_outputs=False,
                )
            except RuntimeError as error:
                raise cause(error) from None
        self.tied.add_up(self.module)
        assert self.seen is not None
        return self.sum_over_ranks(self.seen, "pipeline", *COPIES)

    @torch.no_grad()
    def evaluate(self, batch: Batch, observe: Observe | None = None) -> tuple[Tensor, float]:
        """As everywhere; only a rank that has the last stage observes outputs."""
        batch = self.loss.weigh(batch)
        with self.split_batch(batch) as mine, observed(self, observe):
            parts = self.micro_batches(self.weigh_chunk(batch, mine))
            self.begin(batch, lambda loss: loss)
            stage_outputs = self.stage_outputs_of(parts[0])
            sent: list[tuple[Any, Tensor]] = []
            for part in parts:
                # Depth first: two ranks that send to each other then always take turns.
                sent += self.forward_only(part, stage_outputs)
            for work, _ in sent:
                work.wait()
        assert self.seen is not None
        return self.world.sum(self.seen, "pipeline", *COPIES), self.evaluated_weight()

    def check_rows(self, batch: Batch) -> None:
        """Refuse rows of which pipelines beside each other would have unequally many."""
        ways = self.world.layout.data_ranks
        most = batch.rows_of_fullest(ways)
        if batch.size % ways == 0 and most * ways != batch.size:
            raise DataError(
                "batch",
                f"a rank has {most} of {batch.size} rows, and every pipeline of the {ways} needs "
                "as many",
                "Give all ranks the same number, or use pipeline=1.",
            )
        if batch.size % ways:
            raise DataError(
                "batch",
                f"{batch.size} rows do not divide by the {ways} ranks that share them, and every "
                "pipeline runs as many micro-batches",
                "Use a batch that divides, or pipeline=1.",
            )

    def begin(self, batch: Batch, scale: Scale) -> None:
        self.check_rows(batch)
        self.start_count(batch)()
        self.scale = scale
        self.parts = []
        self.terms.start()
        self.begin_pass()

    def begin_pass(self) -> None:
        self.seen = torch.zeros((), device=self.world.device)
        for chunk, counters in zip(self.chunks, self.counters):
            copy_mode(self.module, chunk.view)
            counters.first = True

    def run(self, chunk: StageModule) -> Any:
        """One stage's forward: what flows on, or the last one's weighed loss."""
        part = chunk.part
        assert part is not None and self.seen is not None
        if chunk.index < self.stages.last:
            with self.forward_context():
                sent = chunk.carry(self.read_inputs(part.inputs))
            # Its backward takes what was sent out of the graph in place, which neither views nor
            # tensors that the graph has saved allow.
            split = self.schedule.kind == "zero-bubble"
            return tuple(tensor.clone() for tensor in sent) if split else sent
        if self.probed is not None:
            self.probed.append(self.wide_outputs(part))  # what was received may have 16 bits
            return self.seen
        weight = self.weight(part)
        weighted = self.forward(part).float() * weight
        self.terms.add(weight)
        self.parts.append((part.num_rows, weighted.detach()))
        self.seen += weighted.detach()
        return self.scale(weighted * self.gradient_sync.ways)

    def loss_trial(self) -> LossTrial:
        return make_trial(self)

    def settle_loss(self, batch: Batch) -> None:
        """As everywhere; shapes of the trial's batches say nothing of a step's."""
        self.check_rows(batch)
        if not self.loss.known:
            known = dict(self.stage_outputs)
            self.seen = torch.zeros((), device=self.world.device)
            # First, on all stages together: a loss that reads the module is refused.
            self.stage_outputs_of(self.micro_batches(batch)[0])
            Accumulate.settle_loss(self, batch)
            self.stage_outputs = known

    def module_outputs(self, part: Batch) -> Any:
        self.begin_pass()
        known = dict(self.stage_outputs)  # shapes of a trial say nothing of a step's
        stage_outputs = self.stage_outputs_of(part)
        found = self.probed = []
        try:
            for work, _ in self.forward_only(part, stage_outputs):
                work.wait()
        finally:
            self.probed, self.stage_outputs = None, known
        return found[0] if found else None

    def outputs(self, part: Batch) -> Any:
        return call(self.chunks[-1].view, self.read_inputs(part.inputs))

    def micro_batches(self, batch: Batch) -> list[Batch]:
        """Micro-batches of one size, as buffers between stages have one."""
        rows, wanted = batch.num_rows, self.micro or batch.num_rows
        planned = not self.stage_outputs and self.micro is not None
        stages = self.world.layout.pipeline
        size = micro_batch_size(self.schedule, stages, rows, wanted, planned=planned)
        return [batch.rows(slice(first, first + size)) for first in range(0, rows, size)]

    def prepare(self, parts: list[Batch]) -> Any:
        """The schedule for batches like this one; its stages know what they send and receive."""
        key = len(parts), shape_of(parts[0])
        if self.ready is None or self.ready[0] != key:
            stage_outputs = self.stage_outputs_of(parts[0])
            stages = [self.make_stage(chunk, stage_outputs) for chunk in self.chunks]
            self.ready = key, make_schedule(self.schedule, stages, len(parts)), stages
        _, schedule, stages = self.ready
        for stage in stages:
            stage.parts, stage.events = parts, self.events
        return schedule

    def make_stage(self, chunk: StageModule, stage_outputs: Sequence[StageOutputs]) -> Stage:
        index, last = chunk.index, self.stages.last
        loss = torch.empty((), device="meta").requires_grad_()
        return Stage(
            chunk,
            index,
            last + 1,
            self.world.device,
            input_args=stand_ins(stage_outputs[index - 1]) if index else (),
            output_args=stand_ins(stage_outputs[index]) if index < last else (loss,),
            group=self.group,
        )

    def stage_outputs_of(self, part: Batch) -> tuple[StageOutputs, ...]:
        """What flows between stages for a micro-batch of this shape."""
        shape = shape_of(part)
        if shape not in self.stage_outputs or self.checks_loss or self.tries_head:
            self.stage_outputs[shape] = probe_stages(self, part)
        return self.stage_outputs[shape]

    def forward_only(
        self, part: Batch, stage_outputs: Sequence[StageOutputs]
    ) -> list[tuple[Any, Tensor]]:
        """One micro-batch through this rank's stages, without gradients; what is on its way."""
        sent: list[tuple[Any, Tensor]] = []
        here: Sequence[Tensor] = ()  # what this rank's own stage before handed over
        for chunk in self.chunks:
            chunk.part = part
            before, after = chunk.index - 1, chunk.index + 1
            if chunk.index and self.stages.owners[before] != self.stages.index:
                here = received(self, stage_outputs[before])
                for tensor in here:
                    dist.recv(tensor, group_src=self.stages.owners[before], group=self.group)
            here = chunk(*here)
            if after <= self.stages.last and self.stages.owners[after] != self.stages.index:
                owner = self.stages.owners[after]
                for tensor in here:
                    sent.append((dist.isend(tensor, group_dst=owner, group=self.group), tensor))
        return sent


def stand_ins(sent: StageOutputs) -> tuple[Tensor, ...]:
    return tuple(one.stand_in() for one in sent)


def run_followed(
    statistics: RunningStatistics, run: Callable[[StageModule], Any], chunk: StageModule
) -> Any:
    """Run a stage on a micro-batch of a step, or in evaluation, which writes no statistics."""
    if not torch.is_grad_enabled():
        return run(chunk)
    assert chunk.part is not None
    with statistics.micro_batch(chunk.part.num_rows):
        return run(chunk)


def shape_of(part: Batch) -> Shape:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in part.tensors())
