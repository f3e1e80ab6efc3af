"""The hooks that a user put on a parameter's gradient."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .lookup import has

BEFORE = "torch.Tensor._backward_hooks"
AFTER = "torch.Tensor._post_accumulate_grad_hooks"


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
