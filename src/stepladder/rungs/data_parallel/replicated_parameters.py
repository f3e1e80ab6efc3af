"""Parameters that FSDP2 cannot shard, kept whole on every rank, and their gradients.

FSDP2 cuts a parameter of floats or bytes along its first dimension. One without dimensions (CLIP's
`logit_scale`), without elements, or of complex or integer type stays as it is; the ranks average
its gradient once a batch, as FSDP2 averages those of shards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.rungs.parameter_shards import local, real

from .gradient_sync import Around


def cannot_be_sharded(parameter: Tensor) -> bool:
    packed = parameter.dtype == torch.uint8  # bytes of what somebody packed: never trained
    sliced = parameter.is_floating_point() or packed
    return not (parameter.dim() and parameter.numel() and sliced)


class ReplicatedParameters:
    """The parameters of a module that FSDP2 leaves alone.

    Args:
        alone: those that no other rank has: nobody averages their gradients.
    """

    def __init__(self, module: nn.Module, alone: Collection[nn.Parameter] = ()) -> None:
        whole = {p for p in module.parameters() if cannot_be_sharded(p)}
        self.trained = [p for p in module.parameters() if p in whole and p.requires_grad]
        self.all = whole | set(alone)

    def place(self, device: torch.device) -> None:
        """Move them to the device that computes, where FSDP2 moves what it shards."""
        for parameter in self.all:
            if not parameter.is_meta:
                parameter.data = parameter.data.to(device)

    def averaging(self, group: dist.ProcessGroup) -> Around:
        """The context of a micro-batch; after the last one gradients are averaged."""

        @contextmanager
        def around_micro_batch(last: bool) -> Iterator[None]:
            yield
            if last and self.trained:
                self.average_gradients(group)

        return around_micro_batch

    @torch.no_grad()
    def average_gradients(self, group: dist.ProcessGroup) -> None:
        """After a batch: average the gradients; None stays where no rank used the parameter."""
        by_type: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in self.trained:
            by_type.setdefault(parameter.dtype, []).append(parameter)
        for parameters in by_type.values():
            average(parameters, group)


def average(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """One collective: every gradient, and whether this rank has it."""
    values = [local(p if p.grad is None else p.grad).reshape(-1) for p in parameters]
    values = [v if p.grad is not None else torch.zeros_like(v) for p, v in zip(parameters, values)]
    having = values[0].new_tensor([float(p.grad is not None) for p in parameters])
    flat = torch.cat([*values, having])
    dist.all_reduce(real(flat), group=group)  # gloo adds up no complex numbers
    *sums, counts = flat.split([*(v.numel() for v in values), len(parameters)])
    used = [count != 0 for count in counts.tolist()]
    for parameter, total, anywhere in zip(parameters, sums, used):
        if anywhere:
            write_gradient(parameter, total / group.size())


def write_gradient(parameter: nn.Parameter, value: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    mine = local(parameter.grad)
    mine.copy_(value.view(mine.shape))
