"""Rung: gradient compression between data-parallel copies: 16 bits, or PowerSGD.

`fp16` and `bf16` halve the bytes. `powersgd:r` (Vogels et al. 2019) sends, for each matrix M, two
thin factors of r columns whose product approximates M: P = M·Q, made orthonormal, then Q = Mᵀ·P,
each averaged over all ranks; Q is where the next step starts, so that the factors converge to the
dominant directions. What the product misses is added to the next step's gradient: without this
error feedback, the missed directions would never be learnt. Vectors, and matrices whose factors
would be no smaller, are sent uncompressed.

torch's own PowerSGD hook starts collectives from several callbacks at once, in an order that may
differ by rank: on gloo it hangs. Here a bucket's two collectives follow one another.
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
class Compression:
    """Bytes sent, and the state of PowerSGD: factors and error feedback."""

    group: dist.ProcessGroup
    whole_bytes: int = 0  # before compression
    sent_bytes: int = 0
    factors: dict[Tensor, Tensor] = field(default_factory=dict)  # Q of each matrix
    missed: dict[Tensor, Tensor] = field(default_factory=dict)  # error feedback

    def average(self, values: Tensor) -> Tensor:
        """All-reduce to the mean over all copies, in place."""
        self.sent_bytes += values.nbytes
        dist.all_reduce(values, group=self.group)
        return values.div_(self.group.size())


def compress(copy: DistributedDataParallel, how: Compress, group: dist.ProcessGroup) -> Compression:
    """Register the hook that compresses DDP's gradients."""
    compression = Compression(group)
    if how.kind == "powersgd":
        hook = named(partial(reduce_factors, rank=how.rank))
    else:
        hook = named(partial(reduce_in_fewer_bits, dtype=NARROW[how.kind]))
    copy.register_comm_hook(compression, hook)
    return compression


def named(hook: Any) -> Any:
    """A hook as DDP needs it: with a name, and without annotations it cannot resolve."""

    def reduce(state, bucket):
        state.whole_bytes += bucket.buffer().nbytes
        return hook(state, bucket)

    return reduce


def reduce_in_fewer_bits(
    compression: Compression, bucket: dist.GradBucket, *, dtype: torch.dtype
) -> Future[Tensor]:
    """Average a bucket in 16 bits; divided first, so that the sum cannot overflow."""
    narrow = bucket.buffer().to(dtype).div_(compression.group.size())
    compression.sent_bytes += narrow.nbytes
    work = dist.all_reduce(narrow, group=compression.group, async_op=True)

    def widen(done: Future[list[Tensor]]) -> Tensor:
        return bucket.buffer().copy_(done.value()[0])

    return work.get_future().then(widen)


@torch.no_grad()
def reduce_factors(
    compression: Compression, bucket: dist.GradBucket, *, rank: int
) -> Future[Tensor]:
    """Average a bucket's matrices by thin factors, and everything else uncompressed."""
    named_gradients = list(zip(bucket.parameters(), bucket.gradients()))
    thin = [(p, g) for p, g in named_gradients if saves(p.shape, rank)]
    whole = [g for p, g in named_gradients if not saves(p.shape, rank)]
    matrices = [with_error(compression, p, g) for p, g in thin]
    before = [factor(compression, p, m, rank) for (p, _), m in zip(thin, matrices)]
    products = [matrix @ q for matrix, q in zip(matrices, before)]
    means = all_reduce_mean(compression, [*products, *whole])
    lefts = [torch.linalg.qr(left)[0] for left in means[: len(products)]]
    for gradient, value in zip(whole, means[len(products) :]):
        gradient.copy_(value)
    rights = all_reduce_mean(compression, [m.T @ left for m, left in zip(matrices, lefts)])
    for (parameter, gradient), matrix, left, right in zip(thin, matrices, lefts, rights):
        near = left @ right.T
        save_error(compression, parameter, matrix - near, right)  # before the matrix is overwritten
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


def with_error(compression: Compression, parameter: Tensor, gradient: Tensor) -> Tensor:
    """A gradient as a matrix, with what earlier steps missed of it."""
    matrix = gradient.reshape(gradient.shape[0], -1).float()
    missed = compression.missed.get(parameter)
    return matrix if missed is None else matrix + missed


def factor(compression: Compression, parameter: Tensor, matrix: Tensor, rank: int) -> Tensor:
    """The last step's Q; in the first step, random and equal on all ranks."""
    if parameter not in compression.factors:
        draw = torch.Generator().manual_seed(len(compression.factors))
        first = torch.randn(matrix.shape[1], rank, generator=draw)
        compression.factors[parameter] = first.to(matrix.device)
    return compression.factors[parameter]


def save_error(compression: Compression, parameter: Tensor, missed: Tensor, right: Tensor) -> None:
    """Save Q and the error for the next step, unless this one overflowed on any rank."""
    finite = torch.isfinite(right).all()  # averaged, so that all ranks see the same
    compression.missed[parameter] = torch.where(finite, missed, 0.0)
    compression.factors[parameter] = torch.where(finite, right, compression.factors[parameter])


def all_reduce_mean(compression: Compression, tensors: list[Tensor]) -> list[Tensor]:
    """The mean of each tensor over all copies, in one collective."""
    if not tensors:
        return []
    flat = compression.average(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors)]
