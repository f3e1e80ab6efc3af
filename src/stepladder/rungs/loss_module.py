"""A loss that is a module: its parameters are trained and its state is saved beside the model's.

The model keeps its parameters' names, so the two are not wrapped into one module. The loss stays
whole on every rank that computes it (in a pipeline, on the last stage), and its gradients are
averaged over those ranks once a batch. Optimizer groups see its parameters as `loss.NAME`;
checkpoints hold them apart from the model's, which can be loaded or exported without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules import loss as losses_of_torch
from torch.nn.parameter import UninitializedParameter

from stepladder.errors import ModelError
from stepladder.plan import SettledPlan
from stepladder.plan.layout import COPIES
from stepladder.rungs.data_parallel.broadcast_parameters import broadcast_parameters
from stepladder.rungs.data_parallel.replicated_parameters import average
from stepladder.rungs.precision.precision import (
    accumulate_in_float32,
    cast_parts,
    computes_in_float64,
)
from stepladder.seam.modules import buffers_of, persistent_buffers
from stepladder.world import World

PREFIX = "loss."


class ModuleAndLoss(nn.Module):
    """A module and its loss, for code that walks both; the module's names are as without it."""

    def __init__(self, module: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def named_modules(
        self,
        memo: set[nn.Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, nn.Module]]:
        """Parts of the module, then those of the loss that are not the module's."""
        known = set() if memo is None else memo
        yield from self.module.named_modules(known, prefix, remove_duplicate)
        known.update(self.module.modules())
        under = f"{prefix}.{PREFIX}".strip(".")
        yield from self.loss.named_modules(known, under, remove_duplicate)


@dataclass(frozen=True, slots=True)
class LossModule:
    """The loss that a user gave as a module, and what of it is trained."""

    module: nn.Module
    trained: tuple[tuple[str, nn.Parameter], ...]  # named `loss.NAME`

    @property
    def has_state(self) -> bool:
        """Whether training may change it; the buffers of torch's own losses are settings."""
        own = type(self.module).__module__ != losses_of_torch.__name__
        return bool(self.trained) or (own and any(True for _ in self.buffers()))

    def buffers(self) -> Iterator[Tensor]:
        for part in self.module.modules():
            yield from (buffer for _, buffer in persistent_buffers(part))

    def average_gradients(self, world: World, ways: int) -> None:
        """After a batch: have every rank that computes the loss have the whole gradient.

        Args:
            ways: by which each rank's loss was multiplied.
        """
        if world.mesh is None or world.group(*COPIES).size() == 1:
            return
        group = world.group(*COPIES)
        by_type: dict[torch.dtype, list[nn.Parameter]] = {}
        for _, parameter in self.trained:
            by_type.setdefault(parameter.dtype, []).append(parameter)
        for parameters in by_type.values():
            average(parameters, group)
            if ways != group.size():
                scale(parameters, group, ways)


def with_loss(module: nn.Module, loss: LossModule | None) -> nn.Module:
    """The module, and where its loss has parameters or buffers, the two together."""
    return module if loss is None else ModuleAndLoss(module, loss.module)


def scale(parameters: list[nn.Parameter], group: dist.ProcessGroup, ways: int) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= group.size() / ways


def take_loss(
    function: Callable[..., Any], module: nn.Module, settled: SettledPlan, world: World
) -> LossModule | None:
    """The loss as a module, on the run's device and the same on every rank; None for a function.

    Called before any rung changes the model.
    """
    if not isinstance(function, nn.Module):
        return None
    models = {id(p): name for name, p in module.named_parameters()}
    parts = [part for part in function.modules() if part not in set(module.modules())]
    held = {id(p): p for part in parts for p in part.parameters(recurse=False)}
    trained = tuple(
        (PREFIX + name, parameter)
        for name, parameter in function.named_parameters()
        if parameter.requires_grad and id(parameter) not in models
    )
    refuse_shared([models[key] for key in held if key in models], settled)
    if trained:
        refuse_unready(function, trained, module)
        cast_parts(parts, settled.plan.precision)
        if settled.sums_gradients_in_float32:
            accumulate_in_float32(function)
    broadcast_parameters(function, world)
    narrows = computes_in_float64(module)
    for part in parts:
        move(part, world.device, narrows)
    return LossModule(function, trained)


def move(part: nn.Module, device: torch.device, narrows: bool) -> None:
    """Move what is the part's own: a loss may hold the model, which a rung moves.

    Args:
        narrows: float64 becomes float32, as outputs and targets do.
    """
    for parameter in part.parameters(recurse=False):
        parameter.data = parameter.data.to(device)
    for name, buffer in buffers_of(part).items():
        if buffer is not None:
            wide = narrows and buffer.dtype == torch.float64
            buffers_of(part)[name] = buffer.to(device, torch.float32 if wide else buffer.dtype)


def refuse_shared(names: list[str], settled: SettledPlan) -> None:
    layout = settled.layout
    if names and (settled.sliced or layout.tensor * layout.pipeline > 1):
        raise ModelError(
            "loss",
            f"holds the model's parameter '{names[0]}', which this plan cuts or moves",
            "Use ddp or zero1, or compute that term in the model's forward.",
        )


def refuse_unready(
    function: nn.Module, trained: tuple[tuple[str, nn.Parameter], ...], module: nn.Module
) -> None:
    taken = [name for name in state_names(module) if name.startswith(PREFIX)]
    if taken:
        raise ModelError(
            "loss",
            f"{type(function).__name__} is trained as 'loss.*', and the model's own '{taken[0]}' "
            "has that name",
            "Rename the model's attribute 'loss'.",
        )
    for name, parameter in trained:
        if isinstance(parameter, UninitializedParameter) or parameter.is_meta:
            raise ModelError(name, "has no values yet", "Call the loss once before climb.")


def state_names(module: nn.Module) -> Iterator[str]:
    yield from (name for name, _ in module.named_parameters())
    yield from (name for name, _ in module.named_buffers())


@torch.no_grad()
def changed_buffer(
    loss: nn.Module, modes: Mapping[nn.Module, bool], call: Callable[[], Any]
) -> str:
    """The first buffer that a call of the loss changes, in these modes; it is restored."""
    now = [(part, part.training) for part in loss.modules()]
    before = {name: buffer.clone() for name, buffer in loss.named_buffers()}
    for part, _ in now:
        part.training = modes.get(part, part.training)
    try:
        call()
    finally:
        for part, mode in now:
            part.training = mode
    after = dict(loss.named_buffers())
    changed = [name for name, value in before.items() if not same(after[name], value)]
    for name in changed:
        after[name].copy_(before[name])
    return changed[0] if changed else ""


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())
