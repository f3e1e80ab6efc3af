"""What an optimizer that was given as code changes in its groups as it learns, such as a count.

Its settings are the user's, who may resume with others; so a checkpoint holds only what has changed
since it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .build_optimizer import SCHEDULED, rate_of_group


def plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    """Numbers and words of a group, some of which an optimizer may count on as it learns."""
    kinds = (bool, int, float, str, type(None))
    left_out = {*rate_of_group(0.0, 1.0, ""), *SCHEDULED}
    return {k: v for k, v in group.items() if isinstance(v, kinds) and k not in left_out}


def counted_settings(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """What an optimizer that was given has changed in its groups since, by group."""
    return {
        group["label"]: {
            key: value
            for key, value in plain_settings(group).items()
            if value != group["as_given"].get(key)
        }
        for group in optimizer.param_groups
        if "as_given" in group
    }


def set_counted(optimizer: torch.optim.Optimizer, saved: Mapping[str, dict[str, Any]]) -> None:
    """Put back what `counted_settings` found; what it did not find is as it was given."""
    for group in optimizer.param_groups:
        if "as_given" in group:
            group |= {**group["as_given"], **saved.get(group["label"], {})}
