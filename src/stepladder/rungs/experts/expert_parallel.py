"""Rung: expert parallel: each rank of a group holds some of a mixture's experts, whole.

The ranks have different samples, as under data parallelism; each sends its tokens to the ranks of
their experts. Of all other parameters every rank of the group has a copy, or a slice under ZeRO.
An expert's gradient comes from the tokens of the whole group without any sum over it, so it is
reduced over fewer ranks than the rest, and divided by as many all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from stepladder.errors import ModelError, PlanError
from stepladder.model.anatomy.expert_lists import expert_lists
from stepladder.model.builtin.mixture import Mixture, mixtures_of, work_type
from stepladder.model.builtin.routing import Routed
from stepladder.plan.settled.model_rules import divisors
from stepladder.seam.modules import parameters_of
from stepladder.world import World

from .check_lists import check_lists
from .exchange import ExpertRanks, through_ranks
from .foreign_mixtures import compute_on_ranks, stacked_experts
from .listed_experts import spread_list


def experts(module: nn.Module, world: World, blocks: Iterable[str] = ()) -> ExpertRanks | None:
    """Spread every mixture's experts over the ranks of the axis, if it has several, in place.

    Args:
        blocks: names of the model's blocks: a list of them is no list of experts.

    Returns:
        What counts the bytes that these ranks send each other.
    """
    if (ways := world.layout.experts) == 1:
        return None
    mesh = world.submesh("experts")
    ranks = ExpertRanks(mesh.get_group())
    own, foreign = mixtures_of(module), stacked_experts(module)
    lists = expert_lists(module, blocks)
    refuse_none(module, ways, len(own) + len(foreign) + len(lists))
    for name, mixture in own:
        check_ways(name, mixture.num_experts, ways)
        divide(mixture.experts, mesh)
        mixture.experts.gradient_share = 1 / ways
        mixture.through_experts = partial(through_group, mixture, ranks)  # type: ignore[method-assign]
    for name, part, count in foreign:
        check_ways(name, count, ways)
        divide(part, mesh)
        compute_on_ranks(part, count, ranks)
    for one in lists:
        check_ways(one.name, len(one.experts), ways)
    check_lists(module, lists, world.layout.tensor)
    for one in lists:
        spread_list(one, world, ranks)
    return ranks


def divide(part: nn.Module, mesh: DeviceMesh) -> None:
    """Keep this rank's experts of every tensor that stacks them."""
    for name, whole in parameters_of(part).items():
        if whole is not None:
            # Tensor ranks have copies of all experts, and compute the same with them.
            data = whole.to_local().detach() if isinstance(whole, DTensor) else whole.data
            # Nothing is sent: all ranks hold the same model.
            mine = distribute_tensor(data, mesh, [Shard(0)], src_data_rank=None)
            part.register_parameter(name, nn.Parameter(mine, requires_grad=whole.requires_grad))


def check_ways(name: str, count: int, ways: int) -> None:
    if count % ways:
        problem = f"{ways} ways cannot hold the {count} experts of '{name}' evenly"
        raise PlanError("layout.experts", problem, divisors(count))


def refuse_none(module: nn.Module, ways: int, found: int) -> None:
    if not found:
        raise ModelError(
            type(module).__name__,
            f"has no mixture whose experts {ways} ranks could hold",
            "Leave experts out, or hold them in a list named experts, or in tensors with an expert "
            "a row, as transformers does.",
        )


def through_group(
    mixture: Mixture, ranks: ExpertRanks, tokens: Tensor, weights: Tensor, routed: Routed
) -> Tensor:
    return through_ranks(tokens.to(work_type(tokens)), weights, routed, ranks, mixture.experts)
