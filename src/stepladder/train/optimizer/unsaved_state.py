"""What of an optimizer's state no checkpoint will hold: it is said when the run is built."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stepladder.train.checkpointing.plain_values import to_data

from .given_optimizer import GivenOptimizer, state_after_step

TORCHS_OWN = frozenset(vars(torch.optim.SGD([torch.zeros(1)])))


def explain_unsaved(given: GivenOptimizer) -> list[str]:
    """One sentence for each way in which this code keeps more than a checkpoint holds."""
    small = nn.Parameter(torch.ones(4, 3))
    tried = given.like([small])
    before = attributes(tried)
    state_after_step(tried, small)
    now = attributes(tried)
    changed = sorted(name for name in now if now[name] != before.get(name))
    said = []
    if type(tried).state_dict is not torch.optim.Optimizer.state_dict:
        said.append(
            f"{given.name} has a state_dict of its own, which is not called: checkpoints hold its "
            "state and what it changes in its groups"
        )
    if changed:
        said.append(
            f"{given.name} changes its attribute '{changed[0]}', which no checkpoint holds: keep "
            "it in its state or in a group"
        )
    return said


def attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer has beside what torch's have, as data where it can be."""
    found = {}
    for name, value in vars(optimizer).items():
        if name not in TORCHS_OWN:
            try:
                found[name] = to_data(value)
            except TypeError:
                continue
    return found
