"""What an optimizer that was given as code keeps in its state under no parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stepladder.errors import RecordError
from stepladder.train.checkpointing.plain_values import from_data, to_data


def loose_state(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    return {key: value for key, value in optimizer.state.items() if not isinstance(key, Tensor)}


def read_loose_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """It as data for a checkpoint; rank 0's, since it belongs to no slice."""
    found = {}
    for key, value in loose_state(optimizer).items():
        try:
            if not isinstance(key, str):
                raise TypeError(f"a {type(key).__name__}")
            found[key] = to_data(value)
        except TypeError as unable:
            raise RecordError(
                "optimizer",
                f"keeps {unable} under {key!r} and no parameter, which a checkpoint cannot hold",
                "Have it keep numbers under a text, or tensors under parameters.",
            ) from unable
    return found


def set_loose_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    state: dict[Any, Any] = optimizer.state
    for key in loose_state(optimizer).keys() - saved.keys():
        del state[key]
    state.update({key: from_data(value) for key, value in saved.items()})
