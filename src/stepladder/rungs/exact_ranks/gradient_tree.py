"""Adding up the gradients of slices in a fixed tree: within a rank, and between ranks.

Sums between ranks travel as all-to-all and all-gather: every rank receives all ranks' gradients of
its share of the elements, adds them up in the tree's order, and sends the result round. That is as
many bytes as a ring all-reduce sends, which adds up in an order that depends on the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from stepladder.rungs.data_parallel.broadcast_parameters import buckets
from stepladder.rungs.data_parallel.gradient_sync import Around, GradientSync
from stepladder.rungs.parameter_shards import local, real
from stepladder.seam.process_groups import gather_tensor

from .slices import add_neighbours

Gradients = list[Tensor | None]  # of each parameter; None where nothing used it


class GradientTree:
    """The gradients of a batch's passes on this rank, added up as a binary counter counts.

    So few sums wait at a time: of 8 passes at most 3, beside the gradients of the last.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters: list[nn.Parameter] = []  # that are trained, before a batch gathers any
        self.waiting: list[Gradients | None] = []  # sums of 1, 2, 4, ... passes

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """A pass, after which its gradients are in the tree; the last leaves the sum of all."""
        if not self.waiting:
            self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        try:
            yield
        except BaseException:
            self.waiting = []  # the batch is tried again
            raise
        self.push()
        if last:
            self.pop()

    @torch.no_grad()
    def push(self) -> None:
        carried: Gradients = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        for level, earlier in enumerate(self.waiting):
            if earlier is None:
                self.waiting[level] = carried
                return
            carried, self.waiting[level] = add(earlier, carried), None
        self.waiting.append(carried)

    def pop(self) -> None:
        *below, total = self.waiting
        assert total is not None and not any(below), "a power of two of passes leaves one sum"
        self.waiting = []
        for parameter, gradient in zip(self.parameters, total):
            parameter.grad = gradient


def add(earlier: Gradients, later: Gradients) -> Gradients:
    """The sums, in the memory of one of the two."""
    return [add_one(*both) for both in zip(earlier, later)]


def add_one(earlier: Tensor | None, later: Tensor | None) -> Tensor | None:
    """A gradient that is missing counts as zero, which turns -0.0 into 0.0: ranks send zeros."""
    if earlier is None or later is None:
        there = later if earlier is None else earlier
        if there is not None:
            local(there).add_(0.0)
        return there
    local(earlier).add_(local(later))
    return earlier


@torch.no_grad()
def sum_over_ranks(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None) -> None:
    """Have `.grad` be the sum of all ranks' in the tree's order; None where no rank has one."""
    if group is None or not parameters:
        return
    used = [parameter.grad is not None for parameter in parameters]
    anywhere = torch.tensor(used, dtype=torch.uint8, device=parameters[0].device)
    dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=group)
    for bucket in buckets([p for p, one in zip(parameters, anywhere.tolist()) if one]):
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [real(parameter.grad) for parameter in bucket if parameter.grad is not None]
        flat = [one.reshape(-1) for one in gradients]
        sizes = [one.numel() for one in flat]
        padding = flat[0].new_zeros(-sum(sizes) % group.size())
        total = reduce_in_order(torch.cat([*flat, padding]), group)
        for gradient, part in zip(gradients, total[: sum(sizes)].split(sizes)):
            gradient.copy_(part.view(gradient.shape))


def reduce_in_order(flat: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of all ranks' tensors, which divide by the ranks, on every rank."""
    every = torch.empty_like(flat)
    gather_tensor(every, scatter_in_order(flat, group), group=group)
    return every


def scatter_in_order(flat: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's part of the sum of all ranks' tensors."""
    received = torch.empty_like(flat)
    dist.all_to_all_single(received, flat, group=group)
    return add_neighbours(received.view(group.size(), -1))


class ScatterInOrder:
    """FSDP2's reduce-scatter, in the tree's order."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        output_tensor.copy_(scatter_in_order(input_tensor, group))


def reduce_shards_in_order(units: Sequence[nn.Module]) -> None:
    """Have FSDP2 sum the gradients of its units over ranks in the tree's order."""
    for unit in units:
        assert isinstance(unit, FSDPModule)
        comm: Any = ScatterInOrder()
        unit.set_custom_reduce_scatter(comm)
        unit.set_gradient_divide_factor(1.0)  # a sum: a loss scale must not know of ranks
        unit.set_force_sum_reduction_for_comms(True)


def keep_whole_gradients(module: nn.Module, group: dist.ProcessGroup | None) -> GradientSync:
    """How a module is run where ranks keep whole gradients: one device, DDP, ZeRO 1."""
    tree = GradientTree(module)

    @contextmanager
    def around_micro_batch(last: bool) -> Iterator[None]:
        with tree.micro_batch(last):
            yield
        if last:
            sum_over_ranks(tree.parameters, group)

    return GradientSync(module, around_micro_batch=around_micro_batch)


def keep_shards(
    module: nn.Module, replicated: Sequence[nn.Parameter], group: dist.ProcessGroup
) -> Around:
    """The context of a micro-batch under ZeRO 2 and 3, whose units are reduced in each.

    Args:
        replicated: parameters that FSDP2 leaves whole.
    """
    tree = GradientTree(module)

    @contextmanager
    def around_micro_batch(last: bool) -> Iterator[None]:
        with tree.micro_batch(last):
            yield
            sum_over_ranks(replicated, group)

    return around_micro_batch
