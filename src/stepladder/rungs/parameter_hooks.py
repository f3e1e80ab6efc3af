"""The user's hooks on parameters, called once a batch with the whole gradient, as on one device.

autograd calls a hook in every backward pass, with the gradient of one micro-batch on one rank, and
FSDP2 and tensor parallelism put other tensors in the place of the parameter that the hook is on. So
the hooks wait while a batch is cut, and are called when its gradient is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from stepladder.seam.gradient_hooks import accumulated_hooks, gradient_hooks
from stepladder.seam.storages import version_of

Hooks = dict[int, Any]  # torch's own dictionary: removing a handle removes the entry
Scale = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Hooked:
    """A parameter, the dictionaries of its hooks, and what they held before they were emptied."""

    parameter: nn.Parameter
    before: Sequence[tuple[Hooks, Hooks]]  # called with the gradient
    after: Sequence[tuple[Hooks, Hooks]]  # called with the parameter


class ParameterHooks:
    """The hooks of a module's parameters, taken from it before any rung replaces them."""

    def __init__(self, module: nn.Module) -> None:
        self.before, self.after = {}, {}  # type: dict[str, Hooks], dict[str, Hooks]
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if hooks := gradient_hooks(parameter):
                self.before[name] = hooks
            if hooks := accumulated_hooks(parameter):
                self.after[name] = hooks

    @contextmanager
    def once_a_batch(
        self, module: nn.Module, scale: Scale, seed: Callable[[], None]
    ) -> Iterator[None]:
        """A context in which a batch becomes gradients; the hooks are called at its end.

        Args:
            scale: multiplies gradients, as the loss was.
            seed: has all ranks draw the same random numbers; called where there are hooks.
        """
        hooked = list(self.find(module))
        try:
            for dictionary, _ in entries(hooked):
                for key in [key for key, hook in dictionary.items() if not is_own(hook)]:
                    del dictionary[key]
            yield
        finally:
            for dictionary, held in entries(hooked):
                dictionary.update(held)
        if hooked:
            seed()
        for one in hooked:
            if one.parameter.grad is not None:
                call_hooks(one, scale)

    def find(self, module: nn.Module) -> Iterator[Hooked]:
        """Parameters that have hooks now: from before the rungs, or added since."""
        for name, parameter in module.named_parameters():
            before = distinct(self.before.get(name), gradient_hooks(parameter))
            after = distinct(self.after.get(name), accumulated_hooks(parameter))
            if before or after:
                yield Hooked(parameter, before, after)


def entries(hooked: Sequence[Hooked]) -> Iterator[tuple[Hooks, Hooks]]:
    for one in hooked:
        yield from (*one.before, *one.after)


def distinct(*dictionaries: Hooks | None) -> list[tuple[Hooks, Hooks]]:
    """Each dictionary once, and a copy of its entries that the user made."""
    found = {id(each): each for each in dictionaries if each}
    copies = [
        (each, {key: hook for key, hook in each.items() if not is_own(hook)})
        for each in found.values()
    ]
    return [(each, held) for each, held in copies if held]


def is_own(hook: Any) -> bool:
    """Whether stepladder itself added a hook, to measure memory."""
    function = hook.func if isinstance(hook, partial) else hook
    return str(getattr(function, "__module__", "")).startswith("stepladder.")


def call_hooks(one: Hooked, scale: Scale) -> None:
    """Call the hooks of a parameter with its whole gradient, and keep what they make of it."""
    parameter, gradient = one.parameter, one.parameter.grad
    assert gradient is not None
    factor = scale(torch.ones((), device=gradient.device))
    whole: Tensor = full(gradient).detach() / factor
    for _, hooks in one.before:
        for hook in hooks.values():
            answer = hook(whole)
            whole = whole if answer is None else answer
    result: Tensor | None = whole
    if one.after:
        result = call_accumulated(one, whole)
    parameter.grad = None if result is None else laid_out(result * factor, gradient)


def call_accumulated(one: Hooked, whole: Tensor) -> Tensor | None:
    """Call the hooks that take the parameter, with a whole one; what is left of its gradient."""
    parameter = one.parameter
    cut = isinstance(parameter, DTensor)
    seen = nn.Parameter(full(parameter).detach().clone()) if cut else parameter
    seen.grad = whole.to(seen.dtype)
    before = version_of(seen)
    for _, hooks in one.after:
        for hook in hooks.values():
            hook(seen)
    if cut and version_of(seen) != before:
        with torch.no_grad():
            parameter.copy_(laid_out(seen.detach(), parameter))
    return seen.grad


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def laid_out(whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, the same on all ranks, sharded as another."""
    if not isinstance(like, DTensor):
        return whole.to(like.dtype)
    mesh = like.device_mesh
    same = DTensor.from_local(whole.to(like.dtype), mesh, [Replicate()] * mesh.ndim)
    return same.redistribute(placements=like.placements)
