"""Other people's mixtures whose experts can be spread over ranks, found by how they are called.

Transformers stacks a layer's experts in tensors with one expert a row, and calls the module with
rows, the experts chosen for each, and their weights. So does a module of anybody else's that is
given these. Such a module computes on some of its experts as it does on all: it is called with rows
from all ranks, each with the one expert it came for, counted among those that are here.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.model.builtin.mixture import work_type
from stepladder.model.builtin.routing import scale_gradient, sort_by_expert
from stepladder.rungs.tensor.local_compute import run_on_local
from stepladder.seam.modules import parameters_of

from .exchange import ExpertRanks, through_ranks

WHOLE = "experts_of_all_ranks"  # set on a mixture whose own number is that of this rank
GIVEN = ("hidden_states", "top_k_index", "top_k_weights")  # what such a module's forward takes


def stacked_experts(module: nn.Module) -> list[tuple[str, nn.Module, int]]:
    """The modules that hold a layer's experts, each with its name and their number."""
    found = ((name, part, count_experts(part)) for name, part in module.named_modules())
    return [(name, part, count) for name, part, count in found if count > 1]


def count_experts(part: nn.Module) -> int:
    """How many experts a module stacks along the first dimension of all its tensors; 0: none."""
    own = [parameter for parameter in parameters_of(part).values() if parameter is not None]
    number = getattr(part, "num_experts", 0)
    stacked = own and all(p.dim() > 1 and p.shape[0] == number for p in own)
    # Of the class: a rung may have given the module another one.
    called = tuple(signature(type(part).forward).parameters)[1:] == GIVEN if stacked else False
    return number if called and not any(True for _ in part.children() if has_parameters(_)) else 0


def has_parameters(part: nn.Module) -> bool:
    return any(True for _ in part.parameters())


def compute_on_ranks(part: Any, count: int, ranks: ExpertRanks) -> None:
    """Have a module whose tensors are already divided send its rows to the ranks of the group."""
    setattr(part, WHOLE, count)
    part.num_experts = count // ranks.ways
    if (cut := getattr(part, "_local_forward", None)) is not None:
        part.forward = cut.forward  # tensor ranks had it compute on copies
    part.forward = partial(keep_gradients, part, part.forward)
    run_on_local(part, [part], shares=False)
    own = part.forward
    part.forward = partial(forward_on_ranks, own, count, ranks)


def keep_gradients(part: nn.Module, forward: Any, rows: Tensor, *chosen: Tensor) -> Tensor:
    """What the experts give; where no row came, gradients of zero and not none."""
    if len(rows):
        return forward(rows, *chosen)
    nothing = sum(p.sum() * 0 for p in parameters_of(part).values() if p is not None)
    return rows * 1 + nothing


def forward_on_ranks(
    own: Any,
    count: int,
    ranks: ExpertRanks,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    routed = sort_by_expert(top_k_index, count)
    apply = partial(on_this_rank, own, ranks.ways)
    tokens = hidden_states.to(work_type(hidden_states))
    given = through_ranks(tokens, top_k_weights, routed, ranks, apply)
    return given.to(hidden_states.dtype)


def on_this_rank(own: Any, ways: int, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows through the experts that are here.

    Their gradients are divided by as many ranks as all others are, and reduced over fewer.
    """
    places = torch.arange(len(rows), device=rows.device, dtype=ends.dtype)
    expert = torch.bucketize(places, ends, right=True).unsqueeze(1)
    rows, weights = scale_gradient(rows, ways), scale_gradient(weights, ways)
    return scale_gradient(own(rows, expert, weights.unsqueeze(1)), 1 / ways)
