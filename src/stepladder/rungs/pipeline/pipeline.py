"""Rung: consecutive blocks on other ranks, micro-batches in turn (torch.distributed.pipelining).

Every rank of a pipeline has the whole batch; what flows between blocks is all that is sent. torch
runs the schedule. The last stage makes a loss of each micro-batch, weighed by its share of the
global batch as everywhere else, so that gradients add up to those of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import DataError, StepladderError
from stepladder.model import uncompiled
from stepladder.plan import Schedule
from stepladder.plan.layout import COPIES
from stepladder.rungs.accumulate import Accumulate, Scale, call
from stepladder.rungs.data_parallel.gradient_sync import Exchange

from .find_stages import Stages
from .schedule import Event, Flow, Stage, make_schedule, suits
from .stage_module import Chunk
from .tied_parameters import Shared

Shape = tuple[tuple[tuple[int, ...], torch.dtype], ...]


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
        if batch.size % self.world.layout.data_ways:
            raise DataError(
                "batch",
                f"{batch.size} rows do not divide by the {self.world.layout.data_ways} ranks that "
                "share them, and every pipeline runs as many micro-batches",
                "Use a batch that divides, or pipeline=1.",
            )
        self.total, self.scale = self.count(batch), scale
        self.seen, self.parts = torch.zeros((), device=self.world.device), []
        for chunk in self.chunks:
            chunk.train(self.module.training)

    def result(self) -> Tensor:
        assert self.seen is not None
        return self.world.sum(self.seen, "pipeline", *COPIES)

    def run(self, chunk: Chunk) -> Tensor:
        """One stage's forward: what flows on, or the last one's weighed loss."""
        part = chunk.part
        assert part is not None and self.seen is not None
        if chunk.index < self.stages.last:
            with self.working():
                return chunk.carry(self.intake(part.inputs))
        weighed = self.forward(part).float() * self.weight(part, self.total)
        self.parts.append((part.num_rows, weighed.detach()))
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
        flows: list[Flow] = []
        for stage in range(self.stages.last):
            found = [self.try_out(c, part, flows) for c in self.chunks if c.index == stage]
            told: list[Any] = found or [None]
            owner = self.stages.owners[stage]
            dist.broadcast_object_list(told, group_src=owner, group=self.group)
            flows += told
        self.flows[shape] = tuple(flows)
        return self.flows[shape]

    def try_out(self, chunk: Chunk, part: Batch, flows: Sequence[Flow]) -> Flow:
        """What a stage sends on when it is given zeros."""
        chunk.part = part
        given = [self.received(flow).zero_() for flow in flows[-1:]]
        with uncompiled(chunk):
            sent = chunk.eval()(*given)
        chunk.train(self.module.training)
        trained = any(p.requires_grad for p in chunk.parameters())
        return Flow(tuple(sent.shape), sent.dtype, trained or any(f.trained for f in flows[-1:]))

    def received(self, flow: Flow) -> Tensor:
        return torch.empty(flow.shape, dtype=flow.dtype, device=self.world.device)

    def pass_on(self, part: Batch, flows: Sequence[Flow]) -> list[tuple[Any, Tensor]]:
        """One micro-batch through this rank's stages, without gradients; what is on its way."""
        sent: list[tuple[Any, Tensor]] = []
        here: list[Tensor] = []  # what this rank's own stage before handed over
        for chunk in self.chunks:
            chunk.part = part
            before, after = chunk.index - 1, chunk.index + 1
            if chunk.index and self.stages.owners[before] != self.stages.index:
                here = [self.received(flows[before])]
                dist.recv(here[0], group_src=self.stages.owners[before], group=self.group)
            here = [chunk(*here)]
            if after <= self.stages.last and self.stages.owners[after] != self.stages.index:
                owner = self.stages.owners[after]
                sent.append((dist.isend(here[0], group_dst=owner, group=self.group), here[0]))
        return sent


def shape_of(part: Batch) -> Shape:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in part.tensors())


def cause(error: BaseException) -> BaseException:
    """What went wrong in a stage; torch wraps it in a report of the stage's inputs."""
    while error.__cause__ is not None and not isinstance(error, StepladderError):
        error = error.__cause__
    return error
