"""Tables of classes cut along the classes: the embedding that reads tokens, the loss that judges.

No rank ever holds a row of all logits. The loss needs three numbers of each row from every rank:
its largest logit, then its sum of exponentials and the logit of the target, which one rank has.
A vocabulary that does not divide is cut as torch cuts it: the last rank's part is smaller.

torch's `loss_parallel` does the same under a context that must stay open through backward; it
replaces operations of the whole process, and so is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from stepladder.data import IGNORED
from stepladder.errors import ModelError, PlanError

from .part import distribute, move, run_on_part
from .pieces import local

TRIED = 64  # tokens that a table of a class of its own is asked for, whole and cut


def cut_embedding(name: str, table: nn.Embedding, mesh: DeviceMesh) -> None:
    """Give each rank some of the rows.

    What a class of somebody else's does with each row it looked up, Gemma's scaling, it may do on
    any rank. Whether it does no more than that is tried.
    """
    more = ModelError(
        name,
        f"is an {type(table).__name__} that does more than look up rows and cannot be cut",
        "Use shard or pipeline.",
    )
    if table.max_norm is not None or table.scale_grad_by_freq:
        raise more
    check_classes(name, table.num_embeddings, mesh.size())
    asked = torch.linspace(0, table.num_embeddings - 1, TRIED, device=table.weight.device).long()
    whole = trial(table, asked)
    distribute(table, mesh, {"weight": Shard(0)}, shares=False)
    first, held = first_class(table.num_embeddings, mesh), len(local(table.weight))
    padding = -1 if table.padding_idx is None else table.padding_idx - first
    table.padding_idx = padding if 0 <= padding < held else None
    read = partial(look_up, table.forward, mesh, first, held)
    run_on_part(table, [table], shares=False, forward=read)
    if whole is not None and not torch.equal(whole, table(asked)):
        raise more


@torch.no_grad()
def trial(table: nn.Embedding, asked: Tensor) -> Tensor | None:
    """What a table of a class of its own answers; torch's own needs no trial."""
    return None if type(table) is nn.Embedding else table(asked)


def cut_head(name: str, head: nn.Linear, mesh: DeviceMesh, *, whole_output: bool) -> None:
    """Give each rank some of the classes."""
    num_classes = head.out_features
    check_classes(name, num_classes, mesh.size())
    distribute(head, mesh, {"weight": Shard(0), "bias": Shard(0)}, shares=False)

    def leave(logits: Tensor) -> Tensor:
        # Without gradients somebody only looks at the answer, and wants all of it.
        kept = torch.is_grad_enabled() and not whole_output
        return (as_slice if kept else whole_logits)(logits, num_classes, mesh)

    enter = partial(move, mesh=mesh, source=Replicate(), target=Replicate(), gradient=Partial())
    run_on_part(head, [head], shares=False, enter=enter, leave=leave)


def check_classes(name: str, num_classes: int, ways: int) -> None:
    """Refuse a cut that leaves a rank without any class."""
    if -(-num_classes // ways) * (ways - 1) >= num_classes:
        raise PlanError(
            "layout.tensor",
            f"{ways} ways leave a rank without any of the {num_classes} classes of '{name}'",
            f"Use at most {max(num_classes // 2, 1)}.",
        )


def first_class(num_classes: int, mesh: DeviceMesh) -> int:
    """The first class that this rank holds."""
    size = -(-num_classes // mesh.size())
    return min(mesh.get_local_rank() * size, num_classes)


def look_up(
    read: Callable[[Tensor], Tensor], mesh: DeviceMesh, first: int, held: int, tokens: Tensor
) -> Tensor:
    """Rows of a table of which this rank holds some: its own rows, zeros for others', summed."""
    elsewhere = (tokens < first) | (tokens >= first + held)
    rows = read((tokens - first).masked_fill(elsewhere, 0))
    mine = rows.masked_fill(elsewhere.unsqueeze(-1), 0)
    return move(mine, mesh, Partial(), Replicate(), Replicate())


def as_slice(logits: Tensor, num_classes: int, mesh: DeviceMesh) -> DTensor:
    """This rank's logits as a part of all; parts need not be equal."""
    whole = torch.empty((*logits.shape[:-1], num_classes), device="meta")
    return DTensor.from_local(
        logits,
        mesh,
        [Shard(logits.dim() - 1)],
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def whole_logits(logits: Tensor, num_classes: int, mesh: DeviceMesh) -> Tensor:
    """All logits on every rank, for a loss that knows nothing of slices."""
    whole = as_slice(logits, num_classes, mesh).redistribute(placements=[Replicate()])
    return whole.to_local(grad_placements=[Replicate()])


def is_sliced(logits: Any) -> bool:
    """Whether logits are cut along the classes."""
    return isinstance(logits, DTensor) and logits.placements == (Shard(logits.dim() - 1),)


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
