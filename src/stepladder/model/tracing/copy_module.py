"""Copies of any module, whatever its attributes hold.

`deepcopy` refuses a module that keeps a computed tensor (old-style `weight_norm`, `prune`, a cached
activation), a lock, a generator or an open file. Here computed tensors are copied without the graph
that made them, and an object that cannot be copied is shared with the copy.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError

PLAIN = (bool, int, float, complex, str, bytes, type(None), type)  # copied without fail
Memo = dict[int, Any]


def copy_module(module: nn.Module) -> nn.Module:
    """A deep copy of a module."""
    return copy_with(module, {}, None)


def meta_copy(module: nn.Module) -> nn.Module:
    """A copy of the module on the meta device: its structure and code without its numbers."""
    memo: Memo = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        trained = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if trained else empty
    return copy_with(module, memo, "meta")


def copy_sharing_tensors(module: nn.Module) -> nn.Module:
    """A copy with the same parameters and buffers, and attributes of its own."""
    return copy_with(module, {id(t): t for t in (*module.parameters(), *module.buffers())}, None)


def copy_with(module: nn.Module, memo: Memo, device: str | None) -> nn.Module:
    """A deep copy in which `memo`, as in `deepcopy`, has the copies of some objects.

    Args:
        device: of the copies of computed tensors; None: where they are.
    """
    try:
        for part in module.modules():
            for value in list(vars(part).values()):
                copy_attribute(value, memo, device)
        return deepcopy(module, memo)
    except Exception as error:
        raise ModelError(
            type(module).__name__,
            f"cannot be copied ({one_line(error)})",
            "Let copy.deepcopy(module) work, or use a plan without pipeline.",
        ) from error


def copy_attribute(value: Any, memo: Memo, device: str | None) -> None:
    """Enter into `memo` what `deepcopy` would refuse of an attribute."""
    if isinstance(value, (*PLAIN, nn.Module)) or id(value) in memo:
        return
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            memo[id(value)] = value.detach().to(device or value.device, copy=True)
    elif type(value) in (list, tuple, set, frozenset):
        for one in value:
            copy_attribute(one, memo, device)
    elif isinstance(value, dict):
        for one in value.values():
            copy_attribute(one, memo, device)
    else:
        trial = dict(memo)  # a failed copy leaves halves of objects behind
        try:
            deepcopy(value, trial)
        except Exception:
            memo[id(value)] = value
        else:
            # `deepcopy` keeps what it copied alive under the memo's own id, which is about to be
            # free for another object.
            memo.setdefault(id(memo), []).extend(trial.pop(id(trial), []))
            memo.update(trial)


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
