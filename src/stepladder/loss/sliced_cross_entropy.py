"""Cross-entropy over logits whose classes are spread over ranks.

The loss needs three numbers of each row from every rank: its largest logit, then its sum of
exponentials and the logit of the target, which one rank has.

torch's `loss_parallel` does the same under a context that must stay open through backward; it
replaces operations of the whole process, and so is not used.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from stepladder.data import IGNORED


def is_sliced(logits: Any) -> TypeGuard[DTensor]:
    """Whether logits are cut along the classes."""
    return isinstance(logits, DTensor) and logits.placements == (Shard(logits.dim() - 1),)


def first_class(num_classes: int, mesh: DeviceMesh) -> int:
    """The first class that this rank holds."""
    size = -(-num_classes // mesh.size())
    return min(mesh.get_local_rank() * size, num_classes)


def sliced_cross_entropy(logits: DTensor, targets: Tensor) -> Tensor:
    """The mean over valid targets, as torch's own on whole logits in fp32."""
    mesh = logits.device_mesh
    mine = logits.to_local().flatten(0, -2).float()
    first = first_class(logits.shape[-1], mesh)
    return SlicedCrossEntropy.apply(mine, targets.reshape(-1), first, mesh.get_group())


class SlicedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, first: int, group: dist.ProcessGroup
    ) -> Tensor:
        top = logits.amax(-1)  # (rows)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        shares = (logits - top.unsqueeze(-1)).exp_()
        mine = (targets >= first) & (targets < first + logits.shape[-1])
        column = (targets - first).masked_fill(~mine, 0)
        picked = logits.gather(-1, column.unsqueeze(-1)).squeeze(-1) - top
        sums = torch.stack((shares.sum(-1), picked.masked_fill(~mine, 0), mine.float()))
        dist.all_reduce(sums, group=group)
        total, right, found = sums
        valid = targets != IGNORED
        # A target that is no class of any rank must not pass for a right answer.
        right = right.masked_fill(found == 0, float("nan"))
        count = valid.sum()
        ctx.save_for_backward(shares.div_(total.unsqueeze(-1)), column, mine, valid / count)
        return (total.log() - right).masked_fill(~valid, 0).sum() / count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        shares, column, mine, weight = ctx.saved_tensors
        weight = (weight * gradient).unsqueeze(-1)
        logits = shares * weight
        logits.scatter_add_(-1, column.unsqueeze(-1), -weight * mine.unsqueeze(-1))
        return logits, None, None, None
