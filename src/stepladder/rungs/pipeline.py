"""Rung: consecutive blocks on other ranks, micro-batches in turn (torch.distributed.pipelining).

Every rank of a pipeline has the whole batch; what flows between blocks is all that is sent. torch
runs the schedule. The last stage makes a loss of each micro-batch, weighed by its share of the
global batch as everywhere else, so that gradients add up to those of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from stepladder.data import Batch
from stepladder.errors import DataError, StepladderError
from stepladder.model import uncompiled
from stepladder.plan import Schedule, fills, whole_rounds

from .accumulate import Accumulate, Scale, call
from .chunk import Chunk
from .exchange import Exchange
from .shared import Shared
from .stages import Stages

Shape = tuple[tuple[tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """What one stage sends to the next for each micro-batch."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool  # whether a gradient comes back

    def stand_in(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta").requires_grad_(self.trained)


@dataclass(frozen=True, slots=True)
class Event:
    """One stage's work on one micro-batch, in seconds of a clock that all processes share."""

    stage: int
    micro: int
    kind: str  # forward, backward, input (gradients of what was received), weight
    start: float
    end: float


class Stage(PipelineStage):
    """torch's stage, which tells its chunk whose turn it is and, if asked, notes when it worked."""

    events: list[Event] | None = None

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.submod.part = self.parts[fwd_chunk_id]
        with self.noting(fwd_chunk_id, "forward"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        kind = "backward" if kwargs.get("full_backward", True) else "input"
        with self.noting(bwd_chunk_id, kind):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.noting(bwd_chunk_id, "weight"):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    @contextmanager
    def noting(self, micro: int, kind: str) -> Any:
        start = perf_counter()
        yield
        if self.events is not None:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.events.append(Event(self.stage_index, micro, kind, start, perf_counter()))


@dataclass(slots=True, kw_only=True)
class Pipeline(Accumulate):
    """Turns a batch into gradients, stage by stage."""

    module: nn.Module  # this rank's part of the model
    chunks: Sequence[Chunk]  # this rank's stages
    stages: Stages
    schedule: Schedule
    exchanges: Sequence[Exchange]  # of each chunk
    shared: Shared
    events: list[Event] | None = None  # a list, while somebody wants to know when stages work
    flows: dict[Shape, tuple[Flow, ...]] = field(default_factory=dict)
    ready: tuple[Any, Any, list[Stage]] | None = None  # for which batches, the schedule, its stages
    scale: Scale = lambda loss: loss
    total: int | Tensor = 1
    seen: Tensor | None = None  # the loss so far, on the last stage

    def __post_init__(self) -> None:
        for chunk in self.chunks:
            chunk.run = self.run

    @property
    def group(self) -> dist.ProcessGroup:
        return self.world.group("pipeline")

    def __call__(self, batch: Batch, scale: Scale) -> Tensor:
        """Add the batch's gradients to `.grad`; return the global batch's mean loss."""
        with self.share(batch) as mine, ExitStack() as around:
            parts = self.passes(mine)
            self.begin(batch, scale)
            schedule = self.prepare(parts)
            for exchange in self.exchanges:
                around.enter_context(exchange.passing(True))
            ends = self.stages.last in self.stages.own
            try:
                # Only which micro-batch it is travels with the schedule: see `Stage`.
                schedule.step(
                    target=torch.arange(len(parts)) if ends else None, return_outputs=False
                )
            except RuntimeError as error:
                raise cause(error) from None
        self.shared.add_up(self.module)
        return self.result()

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[Tensor, int]:
        """The batch's mean loss without gradients, and its number of valid targets."""
        with self.share(batch) as mine:
            parts = self.passes(mine)
            self.begin(batch, lambda loss: loss)
            flows = self.flows_of(parts[0])
            sent: list[tuple[Any, Tensor]] = []
            for part in parts:
                # Depth first: two ranks that send to each other then always take turns.
                sent += self.pass_on(part, flows)
            for work, _ in sent:
                work.wait()
        return self.result(), int(self.total)

    def begin(self, batch: Batch, scale: Scale) -> None:
        self.total, self.scale = self.count(batch), scale
        self.seen = torch.zeros((), device=self.world.device)
        for chunk in self.chunks:
            chunk.train(self.module.training)

    def result(self) -> Tensor:
        assert self.seen is not None
        return self.world.sum(self.seen, "pipeline", "replicate", "shard", "context")

    def run(self, chunk: Chunk) -> Tensor:
        """One stage's forward: what flows on, or the last one's weighed loss."""
        part = chunk.part
        assert part is not None and self.seen is not None
        if chunk.index < self.stages.last:
            with self.working():
                return chunk.carry(self.intake(part.inputs))
        weighed = self.forward(part).float() * self.weight(part, self.total)
        self.seen += weighed.detach()
        return self.scale(weighed * self.exchange.ways)

    def outputs(self, part: Batch) -> Any:
        return call(self.chunks[-1].view, self.intake(part.inputs))

    def passes(self, batch: Batch) -> list[Batch]:
        """Micro-batches of one size, as buffers between stages have one."""
        rows, stages = batch.num_rows, self.world.layout.pipeline
        enough = [
            size for size in range(1, rows + 1)
            if rows % size == 0 and suits(self.schedule, rows // size, stages)
        ]  # fmt: skip
        wanted = self.micro or rows
        sizes = [size for size in enough if size <= wanted]
        planned = not self.flows and self.micro and not suits(self.schedule, rows // wanted, stages)
        if not sizes or (planned and rows % wanted == 0):
            raise DataError(
                "batch.micro",
                f"{rows} rows in micro-batches of {wanted} cannot fill {stages} stages "
                f"with {self.schedule}",
                f"Use micro={enough[-1]}." if enough else f"Use {stages} rows or more on a rank.",
            )
        size = sizes[-1]
        return [batch.rows(slice(first, first + size)) for first in range(0, rows, size)]

    def prepare(self, parts: list[Batch]) -> Any:
        """The schedule for batches like this one; its stages know what they send and receive."""
        key = len(parts), shape_of(parts[0])
        if self.ready is None or self.ready[0] != key:
            flows = self.flows_of(parts[0])
            stages = [self.make_stage(chunk, flows) for chunk in self.chunks]
            self.ready = key, make_schedule(self.schedule, stages, len(parts)), stages
        _, schedule, stages = self.ready
        for stage in stages:
            stage.parts, stage.events = parts, self.events
        return schedule

    def make_stage(self, chunk: Chunk, flows: Sequence[Flow]) -> Stage:
        index, last = chunk.index, self.stages.last
        loss = torch.empty((), device="meta").requires_grad_()
        return Stage(
            chunk,
            index,
            last + 1,
            self.world.device,
            input_args=(flows[index - 1].stand_in(),) if index else (),
            output_args=(flows[index].stand_in() if index < last else loss,),
            group=self.group,
        )

    @torch.no_grad()
    def flows_of(self, part: Batch) -> tuple[Flow, ...]:
        """What flows between stages for a micro-batch of this shape.

        A new shape is tried out once, each stage in turn on zeros; not in training, where running
        statistics would count that pass.
        """
        shape = shape_of(part)
        if shape in self.flows:
            return self.flows[shape]
        training, flows = self.module.training, []
        trained = False
        for stage in range(self.stages.last):
            found = [None]
            for chunk in self.chunks:
                if chunk.index == stage:
                    flow = self.try_out(chunk.eval(), part, flows)
                    found = [Flow(flow.shape, flow.dtype, trained or is_trained(chunk))]
                    chunk.train(training)
            owner = self.stages.owners[stage]
            dist.broadcast_object_list(found, group_src=owner, group=self.group)
            flows += found
            trained = flows[-1].trained
        self.flows[shape] = tuple(flows)
        return self.flows[shape]

    def try_out(self, chunk: Chunk, part: Batch, flows: Sequence[Flow]) -> Tensor:
        chunk.part = part
        device = self.world.device
        given = [torch.zeros(f.shape, dtype=f.dtype, device=device) for f in flows[-1:]]
        with uncompiled(chunk):
            return chunk(*given)

    def pass_on(self, part: Batch, flows: Sequence[Flow]) -> list[tuple[Any, Tensor]]:
        """One micro-batch through this rank's stages, without gradients; what is on its way."""
        sent, local = [], None
        for chunk in self.chunks:
            chunk.part, given = part, ()
            if chunk.index:
                flow, before = flows[chunk.index - 1], self.stages.owners[chunk.index - 1]
                if before == self.stages.index:
                    given = (local,)
                else:
                    given = (torch.empty(flow.shape, dtype=flow.dtype, device=self.world.device),)
                    dist.recv(given[0], group_src=before, group=self.group)
            local = chunk(*given)
            if chunk.index < self.stages.last:
                after = self.stages.owners[chunk.index + 1]
                if after != self.stages.index:
                    sent.append((dist.isend(local, group_dst=after, group=self.group), local))
        return sent


def make_schedule(schedule: Schedule, stages: list[Stage], passes: int) -> Any:
    settings = {"loss_fn": lambda loss, micro: loss, "scale_grads": False}
    match schedule.kind:
        case "gpipe":
            return ScheduleGPipe(stages[0], passes, **settings)
        case "1f1b":
            return Schedule1F1B(stages[0], passes, **settings)
        case "interleaved":
            return ScheduleInterleaved1F1B(stages, passes, **settings)
    return ScheduleZBVZeroBubble(stages, passes, **settings)


def suits(schedule: Schedule, passes: int, stages: int) -> bool:
    """Whether so many micro-batches keep to the schedule's rules."""
    return fills(schedule, passes, stages) and whole_rounds(schedule, passes, stages)


def is_trained(chunk: Chunk) -> bool:
    return any(parameter.requires_grad for parameter in chunk.parameters())


def shape_of(part: Batch) -> Shape:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in part.tensors())


def cause(error: BaseException) -> BaseException:
    """What went wrong in a stage; torch wraps it in a report of the stage's inputs."""
    while error.__cause__ is not None and not isinstance(error, StepladderError):
        error = error.__cause__
    return error
