"""Rung: capture forward and backward of a batch as one CUDA graph, and replay it.

A small model's kernels end sooner than the host can launch the next. Captured, all micro-batches of
a step, forward and backward, are launched by one call; the optimizer's few kernels are queued
behind it. The compiler's own CUDA graphs start anew at each region and cost more than they save.

A graph reads and writes fixed addresses: the batch is copied to where the captured one was,
gradients appear where they appeared, and random numbers follow the generator's state at replay. So
a replayed step computes what the same kernels would have computed one by one. Each shape of batch
is captured by itself, after two eager warm-up batches: compilers and libraries tune themselves in
first calls that cannot be captured. Further shapes run eagerly, since a graph keeps its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import PlanError
from stepladder.rungs.accumulate import Accumulate, Scale
from stepladder.rungs.memory.memory_limit import is_out_of_memory

WARMUP_BATCHES = 2  # of a shape, run eagerly before it is captured
MAX_GRAPHS = 2  # full batches, and the remainder at the end of an epoch

Signature = tuple[Any, ...]


@dataclass(slots=True)
class CapturedBatch:
    """The graph of one shape of batch, and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    read: Batch
    loss: Tensor
    terms: dict[str, Tensor]
    gradients: list[tuple[nn.Parameter, Tensor | None]]

    def replay(self, batch: Batch) -> Tensor:
        for place, given in zip(self.read.tensors(), batch.tensors(), strict=True):
            place.copy_(given, non_blocking=True)
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.loss.clone()  # the next replay writes over it


@dataclass(slots=True)
class CudaGraphAccumulate(Accumulate):
    """Turns a batch into gradients, by a CUDA graph where there is one."""

    warmups: dict[Signature, int] = field(default_factory=dict)
    graphs: dict[Signature, CapturedBatch] = field(default_factory=dict)

    def __call__(self, batch: Batch, scale: Scale) -> Tensor:
        """Leave the batch's gradients in `.grad`; return its mean loss."""
        batch = self.loss.weigh(batch)
        shape = signature(batch, self.micro)
        if shape not in self.graphs:
            self.warmups[shape] = self.warmups.get(shape, 0) + 1
            if self.warmups[shape] <= WARMUP_BATCHES or len(self.graphs) == MAX_GRAPHS:
                return Accumulate.__call__(self, batch, scale)
            self.graphs[shape] = self.capture(batch, scale)
        self.total = self.loss.tokens(batch)
        captured = self.graphs[shape]
        loss = captured.replay(batch)
        self.terms.sums = {name: term.clone() for name, term in captured.terms.items()}
        return loss

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.gradient_sync.module.parameters()
        yield from (p for _, p in self.loss_module.trained) if self.loss_module else ()

    def capture(self, batch: Batch, scale: Scale) -> CapturedBatch:
        """Capture forward and backward of all micro-batches, without running them."""
        read, parameters = batch.copy(), list(self.parameters())
        for parameter in parameters:
            parameter.grad = None  # else the graph would accumulate into it
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).graph.pool() if self.graphs else None
        try:
            # Other threads may use CUDA meanwhile, to prefetch batches.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                loss = Accumulate.__call__(self, read, scale)
        except RuntimeError as refused:
            leave_capture(self.world.device)
            if is_out_of_memory(refused):  # the step is tried again in smaller micro-batches
                self.graphs.clear()
                raise
            raise PlanError(
                "graphs",
                f"a step of this module cannot be captured ({reason(refused)})",
                "Leave graphs out, or remove the synchronisation from the module or its loss.",
            ) from refused
        gradients = [(p, p.grad) for p in parameters]
        return CapturedBatch(graph, read, loss, self.terms.sums, gradients)


def leave_capture(device: torch.device) -> None:
    """Let random numbers be drawn again: a capture that failed leaves the generator capturing.

    torch ends the capture of the stream and, where that raises, not that of the generator; every
    later draw of the process would be refused.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    generator, fresh = torch.cuda.default_generators[index], torch.Generator(device)
    fresh.manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def signature(batch: Batch, micro: int | None) -> Signature:
    """What a graph depends on: shapes, and numbers that the host computed."""
    shapes = tuple((tuple(t.shape), t.dtype) for t in batch.tensors())
    one_pass = micro is None or micro >= batch.num_rows
    # A single micro-batch has weight 1; the weights of several are computed on the host.
    weights = (batch.valid > 0,) if one_pass else row_weights(batch)
    return shapes, micro, weights


def row_weights(batch: Batch) -> Signature:
    return batch.weight_by_row or (batch.valid_by_row, batch.leading_by_row)


def reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
