"""Embeddings with `max_norm`, whose forward pass shortens the rows it looks up.

A rank shortens only the rows of its own samples, and under ZeRO 2 and 3 only in the gathered copy.
So the ranks exchange once a batch which rows were looked up, and each shortens them in what it
keeps, before the optimizer's update, as one device would.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.errors import ModelError
from stepladder.plan import SettledPlan
from stepladder.rungs.parameter_shards import local
from stepladder.seam.sharding import local_slice


class RenormalisedRows:
    """Which rows of a module's embeddings with `max_norm` were looked up since the last batch."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.tables = renormalised(module)
        self.used = [torch.zeros(table.num_embeddings, dtype=torch.uint8) for table in self.tables]
        for index, table in enumerate(self.tables):
            table.register_forward_pre_hook(partial(self.note, index), with_kwargs=True)

    def note(self, index: int, table: nn.Module, args: Any, kwargs: Any) -> None:
        rows = args[0] if args else kwargs["input"]
        self.used[index] = self.used[index].to(rows.device)
        self.used[index][rows.reshape(-1)] = 1

    @torch.no_grad()
    def shorten(self) -> None:
        """After a batch, or an evaluation: shorten the rows that any rank looked up."""
        for table, used in zip(self.tables, self.used):
            anywhere = used.to(self.device)
            dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=self.group)
            mine = local(table.weight)
            start = first_row(table.weight)
            rows = anywhere[start : start + len(mine)].nonzero().flatten().to(mine.device)
            if len(rows):
                torch.embedding_renorm_(mine.detach(), rows, table.max_norm, table.norm_type)
            used.zero_()


def renormalised(module: nn.Module) -> list[Any]:
    """A module's embeddings with `max_norm`."""
    return [
        part
        for part in module.modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
    ]


def first_row(weight: Tensor) -> int:
    """The number of the first row that this rank keeps."""
    if not isinstance(weight, DTensor):
        return 0
    _, start = local_slice(weight, list(weight.placements))
    return start[0]


def check_renormalised(module: nn.Module, settled: SettledPlan) -> None:
    """Refuse plans under which shortened rows are lost."""
    layout = settled.layout
    losing = {
        f"tensor={layout.tensor}, which cuts it": layout.tensor > 1,
        f"pipeline={layout.pipeline}, where stages may share it": layout.pipeline > 1,
        "offload=optimizer, which updates another copy": settled.offloads_optimizer,
        "masters, which are not shortened": settled.masters,
    }
    plans = [plan for plan, is_so in losing.items() if is_so]
    cut = settled.micro_batch or (settled.micro_batches or 1) > 1 or settled.gradient_ranks > 1
    for name, part in module.named_modules():
        if not isinstance(part, nn.Embedding | nn.EmbeddingBag) or part.max_norm is None:
            continue
        problem = f"that is lost under {plans[0]}" if plans else ""
        if not problem and cut and is_shared(part.weight, module):
            # Whoever shares it must see the rows of the whole batch shortened, not of a part.
            problem = "another part reads it, and this plan computes a batch in parts"
        if problem:
            raise ModelError(
                name,
                f"max_norm={part.max_norm:g} shortens rows of its weight in forward, and {problem}",
                "Use another plan, or shorten what the embedding returns.",
            )


def is_shared(weight: Tensor, module: nn.Module) -> bool:
    """Whether several parts of a module have this parameter."""
    return sum(one is weight for _, one in module.named_parameters(remove_duplicate=False)) > 1
