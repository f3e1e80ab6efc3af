"""Frozen matrices that only linears read: what autocast narrows anew in every pass.

Held in 16 bits they give the same products to the last bit, in half the bytes and without the cast.
A matrix that an embedding reads too (a tied head) is not one of them, since its rows are the
stream itself; nor is one of a subclass, which may read it otherwise.
"""

from __future__ import annotations

from collections.abc import Set
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .autocast_type import autocast_type


def frozen_linears(module: nn.Module) -> dict[str, nn.Parameter]:
    """Frozen parameters by name, each of which every owner reads by one matmul."""
    frozen: dict[str, nn.Parameter] = {}
    elsewhere: set[nn.Parameter] = set()
    for name, part in module.named_modules():
        for word, parameter in part.named_parameters(prefix=name, recurse=False):
            if is_linear(part) and not parameter.requires_grad:
                frozen.setdefault(word, parameter)
            else:
                elsewhere.add(parameter)
    return {name: parameter for name, parameter in frozen.items() if parameter not in elsewhere}


def is_linear(part: nn.Module) -> bool:
    """Whether a module is torch's linear, or transformers' with a transposed weight, as it came."""
    if "forward" in vars(part) or nn.utils.parametrize.is_parametrized(part):
        return False
    return type(part) is nn.Linear or is_transposed(part)


def is_transposed(part: nn.Module) -> bool:
    kind = type(part)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


@torch.no_grad()
def narrow_frozen_linears(
    module: nn.Module, dtype: torch.dtype, skip: Set[nn.Module] = frozenset()
) -> int:
    """Hold them in 16 bits, but those of modules to skip; the number of bytes that this saves."""
    saved, narrowed = 0, set()
    kept = {parameter for part in skip for parameter in part.parameters(recurse=False)}
    for parameter in frozen_linears(module).values():
        if parameter.dtype == torch.float32 and parameter not in kept:
            saved += parameter.numel() * (4 - dtype.itemsize)
            parameter.data = parameter.data.to(dtype)
            narrowed.add(parameter)
    for part in module.modules():
        if any(parameter in narrowed for parameter in part.parameters(recurse=False)):
            # A bound method rather than a closure, so that a copy of the module runs its own.
            part.forward = MethodType(read_any_type, part)
    return saved


def read_any_type(linear: Any, given: Tensor) -> Tensor:
    """The linear; outside autocast, in the type of what it is given, as a whole weight would."""
    types = {parameter.dtype for parameter in linear.parameters(recurse=False)}  # or its bias alone
    if types == {given.dtype} or autocast_type(given.device):
        return type(linear).forward(linear, given)
    weight, bias = linear.weight.to(given.dtype), linear.bias
    bias = None if bias is None else bias.to(given.dtype)
    return functional.linear(given, weight.t() if is_transposed(linear) else weight, bias)


def has_own_forward(part: nn.Module) -> bool:
    """Whether somebody replaced the module's forward, other than by what holds it in 16 bits."""
    forward = vars(part).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not read_any_type
