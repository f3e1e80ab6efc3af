"""Which tokens go to which experts: the choice, the order of rows, and the router's two losses.

Nothing here waits for the device: rows are sorted by expert, and where each expert's rows end stays
a tensor. A row is copied to its experts by a gather, and so is the gradient on the way back; a sum
over scattered rows would be slower, and in another order each time.

The losses are counted over the global batch. With C the number of tokens that an expert was chosen
by, T the number of tokens, p a router's probabilities, n its experts and L the layers that have a
router (Fedus et al. 2021; Zoph et al. 2022):

    balance    n / L · Σ_experts C/T · Σ_tokens p/T
    z          1 / L · Σ_tokens logsumexp(logits)² / T

Both are added to a model's loss by their gradients alone (`add_loss`): they reach the router of any
pipeline stage, and a module returns what it returned without them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Routed(NamedTuple):
    """Tokens' rows in the order of their experts."""

    order: Tensor  # which choice each row is: choice i is of token i // active
    inverse: Tensor  # at which row each choice is
    ends: Tensor  # where each expert's rows end, int32


def choose_experts(logits: Tensor, active: int, *, raw: bool) -> tuple[Tensor, Tensor]:
    """The weights of each token's experts, in fp32, and which they are.

    Args:
        logits: (tokens, experts).
        raw: the weights are the router's probabilities and need not add up to one.
    """
    weights, chosen = logits.float().softmax(-1).topk(active, -1)
    return (weights if raw else weights / weights.sum(-1, keepdim=True)), chosen


def sort_by_expert(chosen: Tensor, experts: int) -> Routed:
    """The order in which each expert's rows are next to each other."""
    flat = chosen.flatten()
    sorted_experts, order = torch.sort(flat, stable=True)
    inverse = torch.empty_like(order).scatter_(
        0, order, torch.arange(len(order), device=order.device)
    )
    numbers = torch.arange(experts, device=order.device)
    ends = torch.searchsorted(sorted_experts, numbers, right=True)
    return Routed(order, inverse, ends.to(torch.int32))


def count_tokens(ends: Tensor) -> Tensor:
    """How many tokens chose each expert."""
    return torch.diff(ends, prepend=ends.new_zeros(1)).float()


class Spread(torch.autograd.Function):
    """Copies each token's row to its experts."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.active = len(order) // len(tokens)
        return tokens[order // ctx.active]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (inverse,) = ctx.saved_tensors
        return gradient[inverse].unflatten(0, (-1, ctx.active)).sum(1), None, None


class Collect(torch.autograd.Function):
    """Adds up what each token's experts gave."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor, active: int) -> Tensor:
        ctx.save_for_backward(order)
        ctx.active = active
        return rows[inverse].unflatten(0, (-1, active)).sum(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (order,) = ctx.saved_tensors
        return gradient[order // ctx.active], None, None, None


def spread(tokens: Tensor, routed: Routed) -> Tensor:
    """A row for each choice, sorted by expert."""
    return Spread.apply(tokens, routed.order, routed.inverse)


def collect(rows: Tensor, routed: Routed, active: int) -> Tensor:
    """The sum of each token's rows."""
    return Collect.apply(rows, routed.order, routed.inverse, active)


def within_capacity(chosen: Tensor, experts: int, length: int, factor: float) -> Tensor:
    """Which choices an expert has room for; counted in each sequence, whatever batch it is in.

    Args:
        length: tokens of a sequence; the earlier ones come first.
        factor: how many times an even share an expert takes of a sequence.
    """
    active = chosen.shape[-1]
    room = max(1, -(-int(factor * active * length) // experts))
    by_sequence = chosen.view(-1, length * active)
    places = F.one_hot(by_sequence, experts).cumsum(1).gather(2, by_sequence.unsqueeze(-1))
    return (places <= room).view(chosen.shape)


def balance_loss(logits: Tensor, counts: Tensor, active: int) -> Tensor:
    """This rank's part of the balance loss of one layer.

    Args:
        counts: tokens of the whole batch that chose each expert.
    """
    tokens = counts.sum() / active
    return len(counts) * (counts * logits.float().softmax(-1).sum(0)).sum() / tokens**2


def z_loss(logits: Tensor, counts: Tensor, active: int) -> Tensor:
    """This rank's part of the z-loss of one layer."""
    return logits.float().logsumexp(-1).square().sum() * active / counts.sum()


class ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.factor, None


def scale_gradient(value: Tensor, factor: float) -> Tensor:
    """The value; its gradient is so many times what it would be."""
    return ScaleGradient.apply(value, factor)


class AddLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, loss: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, ctx.saved_tensors[0].clone(), None


def add_loss(output: Tensor, loss: Tensor, factor: Tensor) -> Tensor:
    """The output; a backward pass through it is also one through the loss, times the factor."""
    return AddLoss.apply(output, loss, factor)
