"""Vocabulary parallel: the embedding and the output layer split by classes over ranks.

No rank ever has a row of all logits; the loss over them is loss/sliced_cross_entropy.py. A
vocabulary that does not divide evenly is split as torch does: the last rank's part is smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from stepladder.errors import ModelError, PlanError
from stepladder.kernels.class_slices import ClassSlice
from stepladder.kernels.fused_head import HeadSlice
from stepladder.loss.sliced_cross_entropy import first_class
from stepladder.model import Anatomy
from stepladder.rungs.parameter_shards import local
from stepladder.world import World

from .local_compute import LocalForward, distribute, move, run_on_local

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
    run_on_local(table, [table], shares=False, forward=read)
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
    run_on_local(head, [head], shares=False, enter=enter, leave=leave)


def head_slice(module: nn.Module, anatomy: Anatomy, world: World) -> HeadSlice | None:
    """This rank's classes of an output layer that `cut_head` has cut; None where it did not."""
    head: Any = anatomy.part(module, anatomy.head or None)
    work: LocalForward | None = getattr(head, "_local_forward", None)
    if work is None or work.enter is None or not is_plain(work.forward):
        return None
    mesh = world.submesh("tensor")
    group = mesh.get_group()
    classes = ClassSlice(first_class(head.out_features, mesh), group.size(), group.group_name)
    return HeadSlice(classes, work.enter)


def is_plain(forward: Any) -> bool:
    """Whether a linear's forward, before it was cut, was torch's."""
    return getattr(forward, "__func__", None) is nn.Linear.forward


def check_classes(name: str, num_classes: int, ways: int) -> None:
    """Refuse a cut that leaves a rank without any class."""
    if -(-num_classes // ways) * (ways - 1) >= num_classes:
        raise PlanError(
            "layout.tensor",
            f"{ways} ways leave a rank without any of the {num_classes} classes of '{name}'",
            f"Use at most {max(num_classes // 2, 1)}.",
        )


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
