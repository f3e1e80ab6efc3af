"""BatchNorm whose statistics are those of the whole batch, though ranks share its rows.

A BatchNorm normalises by the mean and variance of the rows it sees. On a rank those are a part of
the batch, so results would depend on the number of ranks. With `batchnorm=sync`, the default, ranks
combine their statistics in forward, and the gradients of these in backward, as torch's
SyncBatchNorm does on GPUs; here on every device, and for subclasses with a forward of their own.

Micro-batches come one after the other, and the first is normalised before the last is seen: with
several of them BatchNorm cannot be what it is for the whole batch, and a run says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stepladder.errors import PlanError
from stepladder.plan import SettledPlan
from stepladder.plan.layout import COPIES
from stepladder.seam.process_groups import gather_tensor
from stepladder.world import World

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
PLAIN_FORWARD = nn.BatchNorm1d.forward  # all of torch's but SyncBatchNorm share it


def batch_norms(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, BATCH_NORMS)]


def explain_batch_norm(module: nn.Module, settled: SettledPlan) -> str:
    """What this plan's batch statistics are taken over, where it is not the whole batch alone."""
    whole = not module.training  # then a run puts all of it into training
    if not any(whole or norm.training or not tracks(norm) for norm in batch_norms(module)):
        return ""
    if settled.slices:
        return (
            f"BatchNorm sees one of {settled.slices} slices of a batch at a time, so results "
            "depend on the number of slices, though not on that of ranks"
        )
    ways, said = settled.gradient_ranks, []
    if ways > 1 and settled.plan.batchnorm == "sync":
        said.append(f"BatchNorm statistics are combined over {ways} ranks")
    elif ways > 1:
        said.append(
            f"BatchNorm statistics are each rank's own, so results depend on the {ways} ranks "
            "(batchnorm=sync combines them)"
        )
    if settled.micro_batch or (settled.micro_batches or 1) > 1 or settled.layout.pipeline > 1:
        said.append(
            "BatchNorm sees one micro-batch at a time, so results depend on the micro-batch"
        )
    return "; ".join(said)


def lacks_rows(error: Exception) -> bool:
    """Whether a BatchNorm raised that it was given one value per channel."""
    return isinstance(error, ValueError) and "more than 1 value per channel" in str(error)


def one_row() -> PlanError:
    return PlanError(
        "batch.micro",
        "BatchNorm needs more than one value per channel, and micro-batches have 1 row",
        "Use micro=2 or more, or fewer passes or ranks for the batch.",
    )


def tracks(norm: Any) -> bool:
    return norm.running_mean is not None


def synchronise_batch_norm(module: nn.Module, world: World) -> None:
    """Have every BatchNorm combine its statistics over the ranks that share a batch."""
    if world.mesh is None or world.group(*COPIES).size() == 1:
        return
    found = torch.tensor(float(bool(batch_norms(module))), device=world.device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    if found:  # making a group is collective, and stages of a pipeline differ
        combine_over(module, own_group(world))


def own_group(world: World) -> dist.ProcessGroup:
    """The ranks that share a batch, as a group apart: a rank that skips a branch starts reducing
    gradients earlier than others, and collectives of one group must come in one order."""
    mine = dist.get_process_group_ranks(world.group(*COPIES))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    rows = [list(row) for row in sorted({tuple(ranks) for ranks in every})]
    group, _ = dist.new_subgroups_by_enumeration(rows)
    return group


def is_combined(part: nn.Module) -> bool:
    """Whether a part waits for other ranks in its forward pass."""
    return "_combined" in vars(part)


def combine_over(module: nn.Module, group: dist.ProcessGroup) -> None:
    norm: Any
    for norm in batch_norms(module):
        norm._combined = Combined(norm.forward, group)
        # A bound method and not a closure, so that a copy of the module runs its own parameters.
        norm.forward = MethodType(forward_combined, norm)


@dataclass(frozen=True, slots=True)
class Combined:
    forward: Callable[[Tensor], Tensor]  # what the module had before
    group: dist.ProcessGroup

    def __deepcopy__(self, memo: Any) -> Combined:
        return self  # a process group is not copied


# The compiler of torch 2.11 leaves out modes such as the one below, without a word.
@torch.compiler.disable
def forward_combined(norm: Any, given: Tensor) -> Tensor:
    combined: Combined = norm._combined
    plain = type(norm).forward is PLAIN_FORWARD or isinstance(norm, nn.SyncBatchNorm)
    with CombineStatistics(combined.group):
        return PLAIN_FORWARD(norm, given) if plain else combined.forward(given)


class CombineStatistics(TorchFunctionMode):
    """A context in which torch's batch_norm uses the statistics of all ranks of a group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.batch_norm:
            return self.normalise(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def normalise(
        self,
        input: Tensor,  # as torch names it
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return functional.batch_norm(
                input, running_mean, running_var, weight, bias, False, momentum, eps
            )
        made, mean, variance, count = Normalise.apply(input, weight, bias, eps, self.group)
        with torch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                unbiased = variance * (count / (count - 1).clamp(min=1))
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        return made


class Normalise(torch.autograd.Function):
    """Normalises by the mean and variance of all ranks' rows."""

    @staticmethod
    def forward(
        context: Any,
        given: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        group: dist.ProcessGroup,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = given.double() if given.dtype == torch.float64 else given.float()
        mean, variance, count = combined_statistics(wide, group)
        inverse = (variance + eps).rsqrt()
        made = (wide - along(mean, wide)) * along(inverse, wide)
        if weight is not None:
            made = made * along(weight.to(wide.dtype), wide)
        if bias is not None:
            made = made + along(bias.to(wide.dtype), wide)
        context.save_for_backward(given, weight, mean, inverse, count)
        context.group, context.has_bias = group, bias is not None
        context.mark_non_differentiable(mean, variance, count)
        return made.to(given.dtype), mean, variance, count

    @staticmethod
    def backward(context: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        given, weight, mean, inverse, count = context.saved_tensors
        wide, flowing = given.to(mean.dtype), gradient.to(mean.dtype)
        normal = (wide - along(mean, wide)) * along(inverse, wide)
        others = other_dims(wide)
        of_bias, of_weight = flowing.sum(others), (flowing * normal).sum(others)
        sums = torch.stack((of_bias, of_weight))
        dist.all_reduce(sums, group=context.group)
        shift, slope = sums / count
        slopes = inverse if weight is None else inverse * weight.to(mean.dtype)
        passed = (flowing - along(shift, wide) - normal * along(slope, wide)) * along(slopes, wide)
        return (
            passed.to(given.dtype),
            None if weight is None else of_weight.to(weight.dtype),
            of_bias.to(gradient.dtype if weight is None else weight.dtype)
            if context.has_bias
            else None,
            None,
            None,
        )


def combined_statistics(wide: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count over all ranks, from each rank's own: no cancellation."""
    others = other_dims(wide)
    count = wide.new_full((1,), wide.numel() // wide.shape[1])
    mean = wide.mean(others)
    squares = (wide - along(mean, wide)).square().sum(others)
    mine = torch.cat((mean, squares, count))
    every = mine.new_empty((group.size(), len(mine)))
    gather_tensor(every, mine[None], group=group)
    channels = len(mean)
    means, sums, counts = every[:, :channels], every[:, channels:-1], every[:, -1:]
    total = counts.sum(0)
    whole = (means * counts).sum(0) / total
    variance = (sums + counts * (means - whole).square()).sum(0) / total
    return whole, variance, total


def other_dims(wide: Tensor) -> list[int]:
    return [0, *range(2, wide.dim())]


def along(channels: Tensor, wide: Tensor) -> Tensor:
    return channels.view(1, -1, *[1] * (wide.dim() - 2))
