"""A module whose parameters are DTensors, computing on this rank's local part of them.

DTensors know the whole parameter, which checkpoints, sharding and norms need. Matmuls do not: while
a module runs, its own parameters are plain local tensors, and only its inputs and outputs are
communicated. So a matmul costs what it costs on one device, and kernels that know nothing of
DTensors work too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor

from stepladder.seam.modules import parameters_of, set_parameters

Change = Callable[[Tensor], Tensor]


def move(
    tensor: Tensor, mesh: DeviceMesh, source: Placement, target: Placement, gradient: Placement
) -> Tensor:
    """A local tensor that lies over the ranks as `source`, as `target`; its gradient comes back
    as `gradient`."""
    distributed = DTensor.from_local(tensor, mesh, [source], run_check=False)
    return distributed.redistribute(placements=[target]).to_local(grad_placements=[gradient])


def move_to_copy(
    tensor: Tensor, mesh: DeviceMesh, source: Placement, target: Placement, gradient: Placement
) -> Tensor:
    """As `move`; the result may be written to, as no view that an autograd function made may."""
    return move(tensor, mesh, source, target, gradient).clone()


@dataclass(frozen=True, slots=True)
class LocalForward:
    """How a module runs on its part."""

    forward: Callable[..., Any]  # what it had before
    owners: tuple[nn.Module, ...]  # whose parameters it reads: itself, and whom it reaches into
    shares: bool  # gradients of its whole parameters are this rank's share of a sum
    enter: Change | None = None  # for what flows in
    leave: Change | None = None  # for what flows out
    added_after: frozenset[str] = frozenset()  # parameters, in it or below, added after `leave`
    pick: Mapping[str, Change] = field(default_factory=dict)  # of a whole parameter, what is used


def distribute(
    owner: nn.Module, mesh: DeviceMesh, placements: dict[str, Placement], *, shares: bool
) -> None:
    """Make a module's own parameters distributed: placed as said, else whole on every rank."""
    for name, parameter in parameters_of(owner).items():
        if parameter is None or isinstance(parameter, DTensor):
            continue
        placement = placements.get(name, Replicate())
        # Nothing is sent: all ranks hold the same model.
        placed = distribute_tensor(parameter.data, mesh, [placement], src_data_rank=None)
        made = nn.Parameter(placed, requires_grad=parameter.requires_grad)
        owner.register_parameter(name, made)
        if made.requires_grad and shares and name not in placements:
            made.register_hook(sum_gradient)


def sum_gradient(gradient: DTensor) -> DTensor:
    """The gradient of a parameter that every rank holds, when each saw a part of the work."""
    return gradient.redistribute(placements=[Replicate()] * gradient.device_mesh.ndim)


def run_on_local(
    module: Any,
    owners: Sequence[nn.Module],
    *,
    shares: bool,
    forward: Callable[..., Any] | None = None,
    enter: Change | None = None,
    leave: Change | None = None,
    added_after: frozenset[str] = frozenset(),
    pick: Mapping[str, Change] | None = None,
) -> None:
    """Have a module compute on this rank's part of its parameters: see `LocalForward`."""
    module._local_forward = LocalForward(
        forward or module.forward, tuple(owners), shares, enter, leave, added_after, pick or {}
    )
    # A bound method and not a closure, so that a copy of the module runs its own parameters.
    module.forward = MethodType(forward_on_local, module)


def forward_on_local(module: Any, *args: Any, **kwargs: Any) -> Any:
    work: LocalForward = module._local_forward
    if work.enter is not None:
        args, kwargs = change_first(work.enter, args, kwargs)
    with local_parameters(work):
        made = work.forward(*args, **kwargs)
    if work.leave is None:
        return made
    made = work.leave(made)
    for name in work.added_after:
        made = made + local_of(module.get_parameter(name), work.shares).to(made.dtype)
    return made


def change_first(change: Change, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Change the first tensor of numbers among the arguments, which is what flows between parts."""
    for index, value in enumerate(args):
        if flows(value):
            return (*args[:index], change(value), *args[index + 1 :]), kwargs
    for name, value in kwargs.items():
        if flows(value):
            return args, {**kwargs, name: change(value)}
    return args, kwargs


def flows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


@contextmanager
def local_parameters(work: LocalForward) -> Iterator[None]:
    """The owners' parameters as plain tensors inside the block."""
    before = [parameters_of(owner) for owner in work.owners]
    for owner in work.owners:
        plain = {
            name: without(owner, parameter)
            if name in work.added_after
            else work.pick.get(name, unchanged)(local_of(parameter, work.shares))
            for name, parameter in parameters_of(owner).items()
        }
        set_parameters(owner, plain)
    try:
        yield
    finally:
        for owner, parameters in zip(work.owners, before):
            set_parameters(owner, parameters)


def unchanged(value: Any) -> Any:
    return value


def without(owner: nn.Module, parameter: Any) -> Tensor | None:
    """What stands for a parameter that is added later: None where a linear takes it, else zero."""
    if parameter is None or isinstance(owner, nn.Linear):
        return None
    return torch.zeros_like(parameter.to_local())


def local_of(parameter: Any, shares: bool) -> Any:
    if not isinstance(parameter, DTensor):
        return parameter
    if not shares or not parameter.placements[-1].is_replicate():
        return parameter.to_local()
    return parameter.to_local(grad_placements=[Partial()])
