"""Rung: expert parallel: each rank of a group holds some of a mixture's experts, whole.

The ranks have different samples, as under data parallelism; each sends its tokens to the ranks of
their experts. Of all other parameters every rank of the group has a copy, or a slice under ZeRO.
An expert's gradient comes from the tokens of the whole group without any sum over it, so it is
reduced over fewer ranks than the rest, and divided by as many all the same.
"""

from __future__ import annotations

from functools import partial

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor

from stepladder.errors import ModelError, PlanError
from stepladder.model.builtin.mixture import Mixture, mixtures_of, work_type
from stepladder.model.builtin.routing import Routed
from stepladder.plan.settled.model_rules import divisors
from stepladder.world import World

from .exchange import through_ranks


def experts(module: nn.Module, world: World) -> None:
    """Spread every mixture's experts over the ranks of the axis, if it has several, in place."""
    if (ways := world.layout.experts) == 1:
        return
    mesh = world.submesh("experts")
    for name, mixture in found_mixtures(module, ways):
        if mixture.num_experts % ways:
            problem = (
                f"{ways} ways cannot hold the {mixture.num_experts} experts of '{name}' evenly"
            )
            raise PlanError("layout.experts", problem, divisors(mixture.num_experts))
        for word, whole in list(mixture.experts.named_parameters()):
            # Nothing is sent: all ranks hold the same model.
            part = distribute_tensor(whole.data, mesh, [Shard(0)], src_data_rank=None)
            cut = nn.Parameter(part, requires_grad=whole.requires_grad)
            mixture.experts.register_parameter(word, cut)
        mixture.experts.gradient_share = 1 / ways
        group = mesh.get_group()
        mixture.through_experts = partial(through_group, mixture, group)  # type: ignore[method-assign]


def found_mixtures(module: nn.Module, ways: int) -> list[tuple[str, Mixture]]:
    found = mixtures_of(module)
    if not found:
        raise ModelError(
            type(module).__name__,
            f"has no mixture whose experts {ways} ranks could hold",
            "Leave experts out, or build one: sl.build('mixtral-tiny').",
        )
    return found


def through_group(
    mixture: Mixture, group: dist.ProcessGroup, tokens: Tensor, weights: Tensor, routed: Routed
) -> Tensor:
    return through_ranks(tokens.to(work_type(tokens)), weights, routed, group, mixture.experts)
