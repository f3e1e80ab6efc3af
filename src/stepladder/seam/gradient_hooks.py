"""The hooks that a user put on a gradient or an optimizer, and the end of a backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .lookup import find, has

BEFORE = "torch.Tensor._backward_hooks"
AFTER = "torch.Tensor._post_accumulate_grad_hooks"
ENGINE = "torch.autograd.Variable._execution_engine"
STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def gradient_hooks(parameter: Tensor) -> dict[int, Any]:
    """What `register_hook` added, by number; autograd calls whatever is in this dictionary."""
    if not has(BEFORE):
        return {}
    return parameter._backward_hooks or {}


def accumulated_hooks(parameter: Tensor) -> dict[int, Any]:
    """What `register_post_accumulate_grad_hook` added, as above."""
    if not has(AFTER):
        return {}
    return parameter._post_accumulate_grad_hooks or {}


def at_end_of_backward(call: Callable[[], None]) -> None:
    """From inside a backward pass: call this at its end, after what was queued before."""
    find(ENGINE).queue_callback(call)


def copy_step_hooks(optimizer: Any, other: Any) -> None:
    """Have another optimizer call the hooks that this one calls around its step."""
    for name in STEP_HOOKS:
        if hasattr(optimizer, name):
            setattr(other, name, getattr(optimizer, name).copy())
