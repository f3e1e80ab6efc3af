"""Parameters that are two and share memory, as `weight_norm` on a tied head leaves them.

Every update of one then changes the other, on one device. A plan that cuts or casts parameters
gives each memory of its own, and would train another model without a word. So does a move to
another device, with plain torch as well; that is left alone.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from stepladder.errors import ModelError
from stepladder.plan import SettledPlan


def refuse_overlapping(module: nn.Module, settled: SettledPlan) -> None:
    """Refuse a module with such parameters, where the plan does not leave them as they are."""
    layout = settled.layout
    cuts = settled.sliced or settled.slices_optimizer_only or layout.tensor * layout.pipeline > 1
    found = overlapping(module) if cuts or casts(module, settled) else None
    if found:
        first, second = found
        raise ModelError(
            first,
            f"shares memory with '{second}' and is another parameter, so each update changes both; "
            "this plan gives each memory of its own",
            "Make them one parameter (a.weight = b.weight), or clone one before climb.",
        )


def casts(module: nn.Module, settled: SettledPlan) -> bool:
    store = getattr(torch, settled.plan.precision.store)
    return any(parameter.dtype != store for parameter in module.parameters())


def overlapping(module: nn.Module) -> tuple[str, str] | None:
    """The names of two parameters that have bytes in common."""
    spans: list[tuple[int, int, str]] = []
    for name, parameter in module.named_parameters():
        if parameter.untyped_storage().device.type == "meta" or not parameter.numel():
            continue  # it has no address, nor has a fake one
        start = parameter.data_ptr()
        spans.append((start, start + parameter.numel() * parameter.element_size(), name))
    spans.sort()
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            return name, other
    return None
