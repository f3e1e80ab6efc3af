"""Rung: gradients that shrink before they travel between whole copies.

`fp16` and `bf16` halve them. `powersgd:r` (Vogels et al. 2019) sends, of each matrix M, two thin
factors of r columns whose product is near M: P = M·Q made orthonormal, then Q = Mᵀ·P, each averaged
over all ranks; Q of one step begins the next, so that the factors turn towards what matters. What
the product misses is kept and added to the next step's gradient: without this error feedback the
missed directions would never be learnt. Vectors, and matrices whose factors would be no smaller,
travel whole.

torch's own PowerSGD hook starts its collectives from several callbacks at once, in an order that
may differ by rank: on gloo it hangs. Here a bucket's two collectives follow one another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from stepladder.plan.options import Compress

NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(slots=True)
class Traffic:
    """What copies sent of their gradients, and what they remember of the rest."""

    group: dist.ProcessGroup
    whole_bytes: int = 0  # before compression
    sent_bytes: int = 0
    factors: dict[Tensor, Tensor] = field(default_factory=dict)  # Q of each matrix
    missed: dict[Tensor, Tensor] = field(default_factory=dict)  # by its last product

    def average(self, values: Tensor) -> Tensor:
        """The mean over all copies, in place."""
        self.sent_bytes += values.nbytes
        dist.all_reduce(values, group=self.group)
        return values.div_(self.group.size())


def compress(copy: DistributedDataParallel, how: Compress, group: dist.ProcessGroup) -> Traffic:
    """Have a copy's gradients travel smaller."""
    traffic = Traffic(group)
    if how.kind == "powersgd":
        hook = named(partial(send_factors, rank=how.rank))
    else:
        hook = named(partial(send_narrow, dtype=NARROW[how.kind]))
    copy.register_comm_hook(traffic, hook)
    return traffic


def named(hook: Any) -> Any:
    """A hook as DDP wants it: with a name, and without words about types it cannot read."""

    def reduce(state, bucket):
        state.whole_bytes += bucket.buffer().nbytes
        return hook(state, bucket)

    return reduce


def send_narrow(traffic: Traffic, bucket: dist.GradBucket, *, dtype: torch.dtype) -> Future[Tensor]:
    """Average a bucket in fewer bits; divided first, so that the sum cannot overflow."""
    narrow = bucket.buffer().to(dtype).div_(traffic.group.size())
    traffic.sent_bytes += narrow.nbytes
    work = dist.all_reduce(narrow, group=traffic.group, async_op=True)

    def widen(done: Future[list[Tensor]]) -> Tensor:
        return bucket.buffer().copy_(done.value()[0])

    return work.get_future().then(widen)


@torch.no_grad()
def send_factors(traffic: Traffic, bucket: dist.GradBucket, *, rank: int) -> Future[Tensor]:
    """Average a bucket's matrices by thin factors, and all else in it whole."""
    named_gradients = list(zip(bucket.parameters(), bucket.gradients()))
    thin = [(p, g) for p, g in named_gradients if saves(p.shape, rank)]
    whole = [g for p, g in named_gradients if not saves(p.shape, rank)]
    matrices = [owed(traffic, p, g) for p, g in thin]
    before = [factor(traffic, p, m, rank) for (p, _), m in zip(thin, matrices)]
    products = [matrix @ q for matrix, q in zip(matrices, before)]
    means = averaged(traffic, [*products, *whole])
    lefts = [torch.linalg.qr(left)[0] for left in means[: len(products)]]
    for gradient, value in zip(whole, means[len(products) :]):
        gradient.copy_(value)
    rights = averaged(traffic, [m.T @ left for m, left in zip(matrices, lefts)])
    for (parameter, gradient), matrix, left, right in zip(thin, matrices, lefts, rights):
        near = left @ right.T
        remember(traffic, parameter, matrix - near, right)  # before the matrix is overwritten
        gradient.copy_(near.view(gradient.shape))
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer())
    return done


def saves(shape: torch.Size, rank: int) -> bool:
    """Whether the factors of a parameter are smaller than the parameter."""
    if len(shape) < 2:
        return False
    rows, columns = shape[0], shape[1:].numel()
    return rank * (rows + columns) < rows * columns


def owed(traffic: Traffic, parameter: Tensor, gradient: Tensor) -> Tensor:
    """A gradient as a matrix, with what earlier steps missed of it."""
    matrix = gradient.reshape(gradient.shape[0], -1).float()
    missed = traffic.missed.get(parameter)
    return matrix if missed is None else matrix + missed


def factor(traffic: Traffic, parameter: Tensor, matrix: Tensor, rank: int) -> Tensor:
    """The factor to begin with: the last step's, at first one that all ranks draw alike."""
    if parameter not in traffic.factors:
        draw = torch.Generator().manual_seed(len(traffic.factors))
        first = torch.randn(matrix.shape[1], rank, generator=draw)
        traffic.factors[parameter] = first.to(matrix.device)
    return traffic.factors[parameter]


def remember(traffic: Traffic, parameter: Tensor, missed: Tensor, right: Tensor) -> None:
    """Keep what the next step begins with; nothing of a step that overflowed on any rank."""
    finite = torch.isfinite(right).all()  # averaged, so that all ranks see the same
    traffic.missed[parameter] = torch.where(finite, missed, 0.0)
    traffic.factors[parameter] = torch.where(finite, right, traffic.factors[parameter])


def averaged(traffic: Traffic, tensors: list[Tensor]) -> list[Tensor]:
    """The mean of each tensor over all copies, in one collective."""
    if not tensors:
        return []
    flat = traffic.average(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors)]
