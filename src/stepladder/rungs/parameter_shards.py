"""What of each parameter this rank's optimizer updates: all of it, its shard, its cut, or a slice.

The optimizer sees only plain tensors that share the parameter's storage. Its rule works element by
element, so a shard is updated exactly as it would be inside the whole parameter; and torch's fused
kernels, which refuse to mix DTensors with plain tensors, work for every layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from stepladder.errors import ModelError
from stepladder.kernels.fused_head import fused_head_in
from stepladder.seam.operators import foreach_norm

APART = "held_apart"  # on a module: the axis along which other ranks have another in its place
NOTE_USE = "note_use"  # on such a module: called with whether any rank has rows for it
JOINT = "_"  # between the axes in the name of a mesh dimension made of several


@dataclass(frozen=True, slots=True)
class ParameterShard:
    """What this rank's optimizer updates of one parameter, and its gradient."""

    name: str  # the parameter's
    parameter: nn.Parameter  # as it is in the module
    owned: nn.Parameter  # this rank's values of it, which the optimizer updates
    axes: tuple[str, ...] = ()  # of the layout, along which other ranks own the rest
    flat: slice | None = None  # the slice of the flattened local tensor; None: all of it
    apart: str = ""  # the axis along which other ranks have other parameters, and nothing of it
    copy: bool = False  # an earlier pipeline stage owns it too and counts its norm

    @property
    def gradient(self) -> Tensor | None:
        """The gradient, on the device that computes norms fastest."""
        return self.owned.grad

    def take_gradient(self) -> None:
        """Make `owned.grad` this rank's part of the parameter's gradient."""
        if self.owned is self.parameter:
            return
        gradient = self.parameter.grad
        mine = None if gradient is None else cut(local(gradient), self.flat)
        if mine is not None and mine.dtype != self.owned.dtype:
            self.owned.grad_dtype = mine.dtype  # a sum of 16-bit gradients
        self.owned.grad = mine

    def drop_gradient(self) -> None:
        self.parameter.grad = self.owned.grad = None


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def has_shards(module: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


def reshard(module: nn.Module) -> None:
    """Free gathered parameters, which FSDP2 keeps after a forward pass without a backward."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def reshard_after_evaluation(module: nn.Module) -> None:
    """Free gathered parameters after a forward without backward, which otherwise does it."""
    head = fused_head_in(module)

    def free(module: nn.Module, *_: Any) -> None:
        if not torch.is_grad_enabled() and not (head is not None and head.skipped):
            reshard(module)

    module.register_forward_hook(free)
    if head is not None:
        head.after_loss.append(partial(reshard, module))
        # A skipped head returns its input, which may be a view. Nothing is added to it in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")


def refuse_gathered(module: nn.Module, sharded: set[str]) -> None:
    """FSDP2 does not free the parameters of a part whose pass raised: they stay as they were."""
    for name, parameter in module.named_parameters():
        if name in sharded and not isinstance(parameter, DTensor):
            raise ModelError(
                "loss",
                f"the module raised in a pass without gradients, so '{name}' stays gathered",
                "Use zero1 or ddp, or have its forward run without gradients.",
            )


def real(tensor: Tensor) -> Tensor:
    """The same memory as real numbers, a pair for each complex one."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def cut(tensor: Tensor, flat: slice | None) -> Tensor:
    return tensor if flat is None else tensor.reshape(-1)[flat]


def make_shards(
    named: Iterable[tuple[str, nn.Parameter]], apart: Mapping[nn.Parameter, str] | None = None
) -> tuple[ParameterShard, ...]:
    """One shard for each trainable parameter: all of it, or the local part of a DTensor."""
    apart = apart or {}
    return tuple(make_shard(name, p, apart.get(p, "")) for name, p in named if p.requires_grad)


def make_shard(name: str, parameter: nn.Parameter, apart: str = "") -> ParameterShard:
    if not isinstance(parameter, DTensor):
        return ParameterShard(name, parameter, parameter, apart=apart)
    owned = nn.Parameter(parameter.to_local().detach())
    return ParameterShard(name, parameter, owned, sliced_axes(parameter), apart=apart)


def hold_apart(part: nn.Module, axis: str) -> None:
    """Say that other ranks along an axis have other modules in this one's place."""
    setattr(part, APART, axis)


def parts_apart(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if hasattr(part, APART)]


def parameters_apart(module: nn.Module) -> dict[nn.Parameter, str]:
    """The parameters of such modules as they are now, each with the axis."""
    parts = parts_apart(module)
    return {p: getattr(part, APART) for part in parts for p in part.parameters()}


def sliced_axes(tensor: DTensor) -> tuple[str, ...]:
    """The layout's axes along which a DTensor is sharded rather than replicated."""
    names = tensor.device_mesh.mesh_dim_names or ()
    return tuple(
        axis
        for name, placement in zip(names, tensor.placements)
        if not placement.is_replicate()
        for axis in name.split(JOINT)
    )


@torch.no_grad()
def squares(shards: Iterable[ParameterShard]) -> Tensor:
    """The sum of squares of each shard's gradient, in fp32."""
    gradients = [real(shard.gradient) for shard in shards if shard.gradient is not None]
    # A slice of a parameter with fewer rows than ranks may be empty, which has no norm.
    having = [g if g.numel() else g.new_zeros(1) for g in gradients]
    # A CPU adds up a large tensor one number after the other: in fp32 a head of 32,768 words is off
    # by 1e-4, and its halves by less.
    wide = torch.float64 if having and having[0].device.type == "cpu" else torch.float32
    return torch.stack(foreach_norm(having, dtype=wide)).square().float()
