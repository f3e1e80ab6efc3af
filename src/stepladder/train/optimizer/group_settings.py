"""What an optimizer that was given as code changes in its groups as it learns, such as a count.

Its settings are the user's, who may resume with others; so a checkpoint holds only what has changed
since it was given, and what was given, to tell of the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from stepladder.train.checkpointing.plain_values import from_data, storable

from .build_optimizer import rate_of_group
from .learning_rates import SCHEDULED

LEFT_OUT = {*rate_of_group(0.0, 1.0, ""), *SCHEDULED, "params", "param_names", "as_given"}


def plain_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group's settings as data; functions and other objects are left out."""
    return storable(group, LEFT_OUT)


def given_groups(optimizer: torch.optim.Optimizer) -> Iterator[dict[str, Any]]:
    return (group for group in optimizer.param_groups if "as_given" in group)


def given_settings(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """The settings that an optimizer was given with, by group."""
    return {group["label"]: group["as_given"] for group in given_groups(optimizer)}


def counted_settings(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """What an optimizer that was given has changed in its groups since, by group."""
    return {
        group["label"]: {
            key: value
            for key, value in plain_settings(group).items()
            if value != group["as_given"].get(key)
        }
        for group in given_groups(optimizer)
    }


def set_counted(optimizer: torch.optim.Optimizer, saved: Mapping[str, dict[str, Any]]) -> None:
    """Put back what `counted_settings` found; what it did not find is as it was given."""
    for group in given_groups(optimizer):
        data = {**group["as_given"], **saved.get(group["label"], {})}
        for key in plain_settings(group).keys() - data:
            del group[key]
        group |= {key: from_data(value) for key, value in data.items()}


def compare_settings(optimizer: torch.optim.Optimizer, saved: Any) -> list[str]:
    """How settings differ from those of a saved run, in words."""
    return [
        f"{label}: {key} was {shown(before.get(key))} and is {shown(now.get(key))} now"
        for label, now in given_settings(optimizer).items()
        for before in [(saved or {}).get(label, now)]
        for key in sorted({*now, *before})
        if now.get(key) != before.get(key)
    ]


def shown(data: Any) -> str:
    return str(from_data(data))
