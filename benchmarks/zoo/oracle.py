"""What a plain torch loop makes of a problem: whole batches, one device, no code of stepladder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from architectures import make_problem

Tensors = dict[str, Tensor]
SMALL_MOVE = 0.01  # of the largest move of any tensor: what moved less is judged by this


@dataclass(frozen=True, slots=True)
class Plain:
    """The outcome of the plain loop."""

    losses: list[float]
    first: Tensors
    last: Tensors


def train_plain(name: str, *, bf16: bool = False, masks: bool = True) -> Plain:
    """Train with plain SGD, without clipping; `bf16`: under torch's autocast."""
    torch.backends.mkldnn.enabled = not bf16  # as on the ranks
    problem = make_problem(name, masks=masks)
    module = problem.module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=problem.lr)
    losses, first = [], copy_tensors(module)
    for batch in problem.batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            loss = problem.plain_loss(module, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Plain(losses, first, copy_tensors(module))


def copy_tensors(module: nn.Module) -> Tensors:
    """Every parameter and buffer under every name it has."""
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {name: tensor.detach().clone() for name, tensor in named}


def largest_difference(plain: Plain, found: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest difference of any tensor, as a share of how far the plain loop moved it."""
    moves = {
        name: distance(last, plain.first[name]) if last.is_floating_point() else 0.0
        for name, last in plain.last.items()
    }
    floor = SMALL_MOVE * max(moves.values())
    assert 0 < floor < float("inf"), "a plain loop that moves nothing finite judges nothing"
    shares = {
        name: distance(found[name], plain.last[name]) / max(moves[name], floor) for name in found
    }
    worst = max(shares, key=lambda name: shares[name], default="")
    return shares.get(worst, 0.0), worst


def distance(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    if not one.numel():
        return 0.0
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else float("inf")
    apart = (one.double() - other.double()).abs()
    return apart.nan_to_num(nan=float("inf")).max().item()
