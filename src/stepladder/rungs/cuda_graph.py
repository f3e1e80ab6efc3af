"""Rung: record how a batch becomes gradients as one CUDA graph, and replay it.

A small model's kernels end sooner than the host can start the next. Recorded, every pass of a step,
forward and backward, is started by one call; the update's few kernels are queued behind it while it
runs. The compiler's own graphs begin anew at each region and cost more than they save here.

What was recorded reads and writes where it did then: the batch is copied to where the recorded one
lay, gradients appear where they appeared, and random numbers follow the seed that stands when it is
replayed. So a replayed step computes what the same kernels would have computed one by one. Each
shape of batch is recorded by itself, after it was taken plainly twice: compilers and libraries try
things out in a first call that cannot be recorded. Beyond the first few shapes batches are taken
plainly, as a recording keeps its activations' memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import PlanError

from .accumulate import Accumulate, Scale

PLAINLY = 2  # times a shape is taken before it is recorded
MOST = 2  # shapes that are recorded: full batches and what is left at the end of a source

Signature = tuple[Any, ...]


@dataclass(slots=True)
class Recording:
    """One shape of batch: where it is read from, and where what comes of it appears."""

    graph: torch.cuda.CUDAGraph
    read: Batch
    loss: Tensor
    gradients: list[tuple[nn.Parameter, Tensor | None]]

    def replay(self, batch: Batch) -> Tensor:
        for place, given in zip(self.read.tensors(), batch.tensors(), strict=True):
            place.copy_(given, non_blocking=True)
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.loss.clone()  # the next replay writes over it


@dataclass(slots=True)
class Recorded(Accumulate):
    """Turns a batch into gradients, from a recording where there is one."""

    taken: dict[Signature, int] = field(default_factory=dict)
    kept: dict[Signature, Recording] = field(default_factory=dict)

    def __call__(self, batch: Batch, scale: Scale) -> Tensor:
        """Leave the batch's gradients in `.grad`; return its mean loss."""
        shape = signature(batch, self.micro)
        if shape not in self.kept:
            self.taken[shape] = self.taken.get(shape, 0) + 1
            if self.taken[shape] <= PLAINLY or len(self.kept) == MOST:
                return Accumulate.__call__(self, batch, scale)
            self.kept[shape] = self.record(batch, scale)
        self.total = self.loss.count(batch)
        return self.kept[shape].replay(batch)

    def record(self, batch: Batch, scale: Scale) -> Recording:
        """Have the passes go by once without running, so that they can be replayed."""
        read, parameters = batch.copy(), list(self.exchange.module.parameters())
        for parameter in parameters:
            parameter.grad = None  # else the recording would add to what is there
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.kept.values())).graph.pool() if self.kept else None
        try:
            # Other threads fetch the next batches meanwhile: none of the recording's business.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                loss = Accumulate.__call__(self, read, scale)
        except RuntimeError as refused:
            raise PlanError(
                "graphs",
                f"a step of this module cannot be recorded ({reason(refused)})",
                "Leave graphs out, or the wait for the device out of the module or its loss.",
            ) from refused
        return Recording(graph, read, loss, [(p, p.grad) for p in parameters])


def signature(batch: Batch, micro: int | None) -> Signature:
    """What must be the same for a recording to serve: shapes, and the numbers the host put in."""
    shapes = tuple((tuple(t.shape), t.dtype) for t in batch.tensors())
    one_pass = micro is None or micro >= batch.num_rows
    # One pass weighs 1 whatever counts in it; several are weighed by the host against each other.
    weights = (batch.valid > 0,) if one_pass else (batch.valid_by_row, batch.leading_by_row)
    return shapes, micro, weights


def reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
