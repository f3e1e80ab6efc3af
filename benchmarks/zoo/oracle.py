"""What a plain torch loop makes of a problem: whole batches, one device, no code of stepladder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from architectures import make_problem
from problem import ROWS

Tensors = dict[str, Tensor]
SMALL_MOVE = 0.01  # of the largest move of any tensor: what moved less is judged by this


@dataclass(frozen=True, slots=True)
class Plain:
    """The outcome of the plain loop."""

    losses: list[float]
    first: Tensors
    last: Tensors


def train_plain(
    name: str, *, bf16: bool = False, masks: bool = True, micro: int | None = None
) -> Plain:
    """Train with plain SGD, without clipping.

    Args:
        bf16: under torch's autocast.
        micro: rows of a micro-batch, whose mean losses count alike; None: whole batches.
    """
    torch.backends.mkldnn.enabled = not bf16  # as on the ranks
    problem = make_problem(name, masks=masks)
    module = problem.module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=problem.lr)
    losses, first = [], copy_tensors(module)
    for batch in problem.batches:
        optimizer.zero_grad()
        total = 0.0
        for part in micro_batches(batch, micro or ROWS):
            with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
                loss = problem.plain_loss(module, part) * ((micro or ROWS) / ROWS)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    if micro:
        set_counters(module, len(problem.batches))
    return Plain(losses, first, copy_tensors(module))


def micro_batches(batch: Any, rows: int) -> list[Any]:
    """The batch in parts of so many rows."""
    if rows >= ROWS:
        return [batch]
    slices = [slice(first, first + rows) for first in range(0, ROWS, rows)]
    return [tree_map(itemgetter(one), batch) for one in slices]


def set_counters(module: nn.Module, batches: int) -> None:
    """Have BatchNorm count batches, not micro-batches: it reads the count for nothing here."""
    for part in module.modules():
        if getattr(part, "num_batches_tracked", None) is not None:
            part.num_batches_tracked.fill_(batches)


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
