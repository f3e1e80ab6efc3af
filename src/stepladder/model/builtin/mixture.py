"""A mixture of experts: a router sends each token through a few of many gated MLPs.

No token is dropped unless a capacity is set. The experts' matrices are stacked, so that one product
by groups serves them all; the weight of an expert is multiplied in before its last matrix, where
rows are narrowest and no other tensor has to be kept for backward.

A whole batch may come in several micro-batches, on several ranks. The router's losses are of the
whole batch all the same: `whole` then has how many of its tokens chose each expert.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from stepladder.errors import PlanError
from stepladder.model.autocast_type import autocast_type
from stepladder.workload import Shape

from .gated_mlp import GatedMlp
from .grouped_product import grouped_product
from .routing import (
    Routed,
    add_loss,
    balance_loss,
    choose_experts,
    collect,
    count_tokens,
    scale_gradient,
    sort_by_expert,
    spread,
    within_capacity,
    z_loss,
)

BALANCE, Z = 0.01, 0.001  # Fedus et al. 2021; Zoph et al. 2022


class Experts(nn.Module):
    """Gated MLPs side by side: rows sorted by expert go through theirs."""

    def __init__(self, experts: int, hidden: int, width: int) -> None:
        super().__init__()
        # Gate and up are one product; they are apart so that `width` can be cut.
        self.gate_up = nn.Parameter(torch.empty(experts, 2, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        self.gradient_share = 1.0  # of what flows back, where ranks have other experts

    def forward(self, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        gate_up, down = (self.own(one).to(rows.dtype) for one in (self.gate_up, self.down))
        both = grouped_product(rows, gate_up.flatten(1, 2).mT, ends)
        gate, up = both.chunk(2, -1)
        inside = (F.silu(gate) * up * weights.unsqueeze(-1)).to(rows.dtype)
        return grouped_product(inside, down.mT, ends)

    def own(self, stacked: Tensor) -> Tensor:
        """The experts that are on this rank."""
        mine = stacked.to_local() if isinstance(stacked, DTensor) else stacked
        return mine if self.gradient_share == 1 else scale_gradient(mine, self.gradient_share)


class Mixture(nn.Module):
    """A router, its experts, and an MLP beside them where the shape has one.

    Args:
        layers: of the model that have a router: its losses are means over them.
        balance: coefficient of the load-balancing loss; 0: none.
        z_loss: coefficient of the router's z-loss; 0: none.
        capacity: an expert takes so many times its even share of a sequence; 0: every token.
    """

    def __init__(
        self, shape: Shape, *, balance: float = BALANCE, z_loss: float = Z, capacity: float = 0.0
    ) -> None:
        super().__init__()
        for name, value in (("balance", balance), ("z_loss", z_loss), ("capacity", capacity)):
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                problem = f"{value!r} is not a number of 0 or more"
                raise PlanError(f"model.{name}", problem, "Use 0 to leave it out.")
        self.num_experts, self.active, self.raw = shape.experts, shape.active, bool(shape.raw)
        self.layers, self.capacity = shape.sparse_layers, float(capacity)
        self.balance, self.z = float(balance), float(z_loss)
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = Experts(shape.experts, shape.hidden, shape.expert_width)
        self.shared = GatedMlp(shape.hidden, shape.shared_ffn) if shape.shared_ffn else None
        self.factor: Tensor
        self.whole: Tensor
        # How a step scales its loss, and the whole batch's tokens by expert where it is cut.
        self.register_buffer("factor", torch.ones(()), persistent=False)
        self.register_buffer("whole", torch.zeros(shape.experts), persistent=False)
        self.cut = False  # whether `whole` has been filled in
        self.sum_counts: Callable[[Tensor], Tensor] | None = None  # over ranks
        self.watch: Callable[[Mixture, Tensor, Tensor], None] | None = None
        self.load: Tensor | None = None  # a step's tokens by expert are added to it

    def reset_buffers(self) -> None:
        self.factor.fill_(1.0)
        self.whole.zero_()

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, -2)
        logits = self.router(tokens)
        weights, chosen = choose_experts(logits, self.active, raw=self.raw)
        routed = sort_by_expert(chosen, self.num_experts)
        counts = count_tokens(routed.ends)
        if self.capacity:
            kept = within_capacity(chosen, self.num_experts, hidden.shape[-2], self.capacity)
            weights = weights * kept
        if self.watch is not None:
            dropped = (~kept).sum() if self.capacity else counts.new_zeros(())
            self.watch(self, counts, dropped)
        if self.load is not None and torch.is_grad_enabled():
            self.load.add_(counts)
        out = self.through_experts(tokens, weights, routed)
        if torch.is_grad_enabled() and (self.balance or self.z):
            out = add_loss(out, self.own_loss(logits, counts), self.factor)
        out = out.view(hidden.shape)
        return out if self.shared is None else out + self.shared(hidden)

    def through_experts(self, tokens: Tensor, weights: Tensor, routed: Routed) -> Tensor:
        """What each token's experts give, weighted and added up."""
        rows = spread(tokens.to(work_type(tokens)), routed)
        given = self.experts(rows, weights.flatten()[routed.order], routed.ends)
        return collect(given, routed, self.active)

    def own_loss(self, logits: Tensor, counts: Tensor) -> Tensor:
        """The part that these tokens have in the router's losses."""
        if self.cut:
            counts = self.whole
        elif self.sum_counts is not None:
            counts = self.sum_counts(counts)
        balance = self.balance * balance_loss(logits, counts, self.active)
        return (balance + self.z * z_loss(logits, counts, self.active)) / self.layers


def work_type(tokens: Tensor) -> torch.dtype:
    """What matmuls compute in here; torch's grouped product is none of autocast's."""
    return autocast_type(tokens.device) or tokens.dtype


def mixtures_of(module: nn.Module) -> list[tuple[str, Mixture]]:
    """Every built-in mixture in a module, by name."""
    return [(name, part) for name, part in module.named_modules() if isinstance(part, Mixture)]
