"""Recorded steps of any module: before each replay the module's Python is asked whether it may.

Module and loss are compiled as one graph (`ReplayableCall`). A step takes place as always up to
the point where that graph would be called: contexts are entered, the compiler's guards are checked,
its side effects happen. If it then arrives at the graph that was recorded, with the same tensors,
the recording is replayed. Otherwise, after a changed attribute, mode, parameter or dtype, the graph
runs as in a plain compiled step, and later steps are recorded anew, a bounded number of times.

A shape of batch is first run plainly, then from the tensors that a recording will read, then
recorded. Batches in several micro-batches run plainly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import first_line
from stepladder.kernels import GraphCall, ReplayableCall
from stepladder.loss import Loss
from stepladder.loss.loss_terms import times
from stepladder.rungs.accumulate import Accumulate, Scale
from stepladder.rungs.memory.memory_limit import is_out_of_memory
from stepladder.seam.gradient_hooks import accumulated_hooks, gradient_hooks

from .cuda_graph import CudaGraphAccumulate, Signature, leave_capture, signature

MAX_SHAPES = 4  # that are recorded: each keeps gradients of its own
MAX_RECORDINGS = 12  # of all shapes, where what forward reads changes
MAX_MISSED = 3  # steps in a row


class Recording:
    """A step's kernels as one CUDA graph, and the tensors that it leaves."""

    def __init__(
        self,
        run: Callable[[], Tensor],
        parameters: list[nn.Parameter],
        device: torch.device,
        pool: Any,
    ) -> None:
        self.graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use CUDA meanwhile, to prefetch batches.
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.loss = run()
        except Exception:
            leave_capture(device)
            raise
        self.gradients = [(one, one.grad) for one in parameters]

    @property
    def pool(self) -> Any:
        return self.graph.pool()

    def launch(self) -> Tensor:
        """Leave the gradients in `.grad`; the loss."""
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.loss.clone()  # the next launch writes over it


@dataclass(slots=True)
class Staged:
    """A shape of batch: the tensors it is copied to, and what is known of its step."""

    read: Batch
    scale: Scale
    call: GraphCall | None = None  # as it is expected; None: not known yet
    recording: Recording | None = None

    def write(self, batch: Batch) -> Batch:
        """The batch in the tensors that a recording reads."""
        for place, given in zip(self.read.tensors(), batch.tensors(), strict=True):
            place.copy_(given, non_blocking=True)
        return replace(batch, inputs=self.read.inputs, targets=self.read.targets)


@dataclass(slots=True)
class CheckedReplay(Accumulate):
    """Turns a batch into gradients, by a recording where the module's Python agrees."""

    call: ReplayableCall | None = None
    shapes: dict[Signature, Staged | None] = field(default_factory=dict)  # None: met once
    recordings: int = 0  # that were made
    replayed: int = 0  # steps
    missed: int = 0  # since the last of these: steps of which another was expected

    def __call__(self, batch: Batch, scale: Scale) -> Tensor:
        """Leave the batch's gradients in `.grad`; return its mean loss."""
        batch = self.loss.weigh(batch)
        shape = signature(batch, self.micro)
        try:
            if self.runs_plainly(batch, shape):
                return Accumulate.__call__(self, batch, scale)
            return self.take(batch, shape, scale)
        except Exception as error:
            if is_out_of_memory(error):  # the step is tried again in smaller micro-batches
                self.shapes.clear()
            raise

    def runs_plainly(self, batch: Batch, shape: Signature) -> bool:
        """Whether this step is not to be recorded, or not yet."""
        several = self.micro is not None and self.micro < batch.num_rows
        if self.off or several or self.observe or not batch.valid:
            return True
        if shape in self.shapes or len(self.shapes) < MAX_SHAPES:
            first = shape not in self.shapes
            self.shapes.setdefault(shape, None)
            return first
        return True

    def take(self, batch: Batch, shape: Signature, scale: Scale) -> Tensor:
        """A step from the tensors that a recording reads, replayed where there is one."""
        assert self.call is not None
        if self.loss.with_module is not self.call or self.call.broken:
            return self.stop(self.call.broken or "its loss is computed outside", batch, scale)
        staged = self.shapes[shape] or self.stage(batch, scale)
        if staged is None:
            return self.stop("its inputs are changed before it is called", batch, scale)
        if staged.scale != scale or any(map(has_hooks, self.parameters())):
            return Accumulate.__call__(self, batch, scale)
        self.shapes[shape], here = staged, staged.write(batch)
        if staged.call is None:
            return self.note(staged, here, scale)
        with self.call.answering(staged.call):
            loss = Accumulate.__call__(self, here, scale)
        if self.call.answered:
            return self.replay(staged, scale)
        self.shapes[shape], self.missed = (
            replace(staged, call=None, recording=None),
            self.missed + 1,
        )
        if self.missed == MAX_MISSED:
            self.turn_off("what its forward reads changes all the time")
        return loss

    def stage(self, batch: Batch, scale: Scale) -> Staged | None:
        """Tensors of this shape, as the module reads them."""
        read = replace(batch, inputs=self.read_inputs(batch.inputs)).copy()
        same = len(read.tensors()) == len(batch.tensors())
        return Staged(read, scale) if same else None

    def note(self, staged: Staged, batch: Batch, scale: Scale) -> Tensor:
        """A plain step from these tensors, after which it is known what a recording must do."""
        assert self.call is not None
        with self.call.noting() as seen:
            loss = Accumulate.__call__(self, batch, scale)
        if len(seen) != 1:
            self.turn_off(f"its forward calls {len(seen)} compiled graphs")
        elif why := seen[0].why_not(self.world.device):
            self.turn_off(why)
        else:
            staged.call = seen[0]
        return loss

    def replay(self, staged: Staged, scale: Scale) -> Tensor:
        """The step whose Python has run already."""
        assert staged.call is not None
        run = partial(self.learn, staged.call, scale)
        if staged.recording is None:
            if self.recordings == MAX_RECORDINGS:
                self.turn_off(f"what its forward reads changed {self.recordings} times")
                return run()
            try:
                self.record(staged, run)
            except Exception as unable:
                self.turn_off(f"it cannot be captured: {first_line(unable)}")
                for parameter in self.parameters():
                    parameter.grad = None
                return run()
        self.parts, self.missed, self.replayed = [], 0, self.replayed + 1
        assert staged.recording is not None
        return staged.recording.launch()

    def record(self, staged: Staged, run: Callable[[], Tensor]) -> None:
        others = [one.recording for one in self.shapes.values() if one and one.recording]
        pool = others[0].pool if others else None
        parameters = list(self.parameters())
        for parameter in parameters:
            parameter.grad = None  # else the graph would accumulate into it
        staged.recording = Recording(run, parameters, self.world.device, pool)
        self.recordings += 1

    def learn(self, call: GraphCall, scale: Scale) -> Tensor:
        """Forward and backward of the compiled graph alone; one micro-batch weighs 1."""
        with self.forward_context():
            loss: Tensor = call.run()
        scale(times(loss, self.gradient_sync.ways)).backward()
        return loss.detach().float()

    def forward(self, part: Batch) -> Tensor:
        """The mean loss; one without a gradient where a recording answers."""
        if self.call is None or self.call.expected is None:
            return Accumulate.forward(self, part)
        with self.forward_context():
            return self.forward_loss(part)

    def parameters(self) -> list[nn.Parameter]:
        own = [p for _, p in self.loss_module.trained] if self.loss_module else []
        return [*self.gradient_sync.module.parameters(), *own]

    def turn_off(self, why: str) -> None:
        self.off = why
        self.shapes.clear()
        self.notes.append(f"graphs: steps are not recorded: {why}")

    def stop(self, why: str, batch: Batch, scale: Scale) -> Tensor:
        """A plain step, as all later ones."""
        self.turn_off(why)
        return Accumulate.__call__(self, batch, scale)


def has_hooks(parameter: nn.Parameter) -> bool:
    """Whether autograd calls Python with this gradient, which no recording does."""
    return bool(gradient_hooks(parameter) or accumulated_hooks(parameter))


def recording(loss: Loss) -> Callable[..., Accumulate]:
    """What records steps: with the module's Python asked where it is compiled with its loss."""
    if isinstance(loss.with_module, ReplayableCall):
        return partial(CheckedReplay, call=loss.with_module)
    return CudaGraphAccumulate
