"""Tokens on their way to the ranks that hold their experts, and back.

Rows are sorted by expert, so those for one rank are next to each other: one all-to-all sends them,
one brings back what the experts gave, and backward does the same the other way round. How many rows
a rank gets from each other is known to the device alone, and torch's all-to-all wants it on the
host: one read in each layer. The compiler leaves this part out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.model.builtin.routing import Routed, collect, count_tokens, spread

Apply = Callable[[Tensor, Tensor, Tensor], Tensor]  # rows, weights and where experts end: outputs


@dataclass(slots=True, eq=False)
class ExpertRanks:
    """The ranks that hold a model's experts, and what this one sent to others of them."""

    group: dist.ProcessGroup
    sent_bytes: int = 0  # counted on the host, which knows every size

    @property
    def ways(self) -> int:
        return self.group.size()

    def exchange(self, out: Tensor, rows: Tensor, received: list[int], sent: list[int]) -> None:
        """Rows to the ranks of the group, so many to each, and those that come from each."""
        dist.all_to_all_single(out, rows, received, sent, group=self.group)
        leaving = sum(sent) - sent[self.group.rank()]
        self.sent_bytes += leaving * rows.shape[1:].numel() * rows.element_size()

    def row_numbers(self, mine: Tensor, theirs: Tensor, rows: int | None) -> list[list[int]]:
        """Rows that go to each rank, of `rows` in all where that is known, and come from each."""
        numbers: list[list[int]] = torch.stack([mine.sum(1), theirs.sum(1)]).tolist()
        return numbers


class AllToAll(torch.autograd.Function):
    """Rows to other ranks; their gradients come back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], ranks: ExpertRanks
    ) -> Tensor:
        ctx.route = received, sent, ranks
        return send(rows, sent, received, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return send(gradient, *ctx.route), None, None, None


def send(rows: Tensor, sent: list[int], received: list[int], ranks: ExpertRanks) -> Tensor:
    out = rows.new_empty(sum(received), *rows.shape[1:])
    ranks.exchange(out, rows.contiguous(), received, sent)
    return out


class Permute(torch.autograd.Function):
    """Rows in another order; their gradients back in the first."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[ctx.saved_tensors[0]], None, None


@dataclass(frozen=True, slots=True)
class Route:
    """Where this rank's rows go, and what it gets."""

    sent: list[int]  # rows to each rank
    received: list[int]  # rows from each rank
    order: Tensor  # of received rows, sorted by this rank's experts
    inverse: Tensor
    ends: Tensor  # where each of them ends


def find_route(counts: Tensor, ranks: ExpertRanks, rows: int | None = None) -> Route:
    """The way of rows sorted by expert.

    Args:
        counts: how many of them go to each expert of all ranks.
        rows: how many there are, where the host knows it without reading the counts.
    """
    ways = ranks.ways
    mine = counts.long().view(ways, -1)  # (ranks, experts of a rank)
    theirs = torch.empty_like(mine)
    ranks.exchange(theirs, mine.contiguous(), ways * [1], ways * [1])
    sent, received = ranks.row_numbers(mine, theirs, rows)
    experts = torch.arange(mine.shape[1], device=mine.device).repeat(ways)
    each = experts.repeat_interleave(theirs.flatten(), output_size=sum(received))
    order = each.argsort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return Route(sent, received, order, inverse, theirs.sum(0).cumsum(0).to(torch.int32))


@torch.compiler.disable
def through_ranks(
    tokens: Tensor, weights: Tensor, routed: Routed, ranks: ExpertRanks, apply: Apply
) -> Tensor:
    """What each token's experts give, wherever they are, weighted and added up.

    Args:
        tokens: (tokens, width), in the type that experts compute in.
        weights: (tokens, active).
        apply: this rank's experts.
    """
    route = find_route(count_tokens(routed.ends), ranks, weights.numel())
    rows = AllToAll.apply(spread(tokens, routed), route.sent, route.received, ranks)
    of_rows = weights.flatten()[routed.order]
    of_rows = AllToAll.apply(of_rows, route.sent, route.received, ranks)
    rows, of_rows = (Permute.apply(one, route.order, route.inverse) for one in (rows, of_rows))
    given = Permute.apply(apply(rows, of_rows, route.ends), route.inverse, route.order)
    back = AllToAll.apply(given, route.received, route.sent, ranks)
    return collect(back, routed, weights.shape[1])
