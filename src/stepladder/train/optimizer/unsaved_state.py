"""What of an optimizer's state no checkpoint will hold: it is said when the run is built."""

from __future__ import annotations

import torch
from torch import nn

from stepladder.train.checkpointing.plain_values import storable

from .given_optimizer import GivenOptimizer, state_after_step

TORCHS_OWN = frozenset(vars(torch.optim.SGD([torch.zeros(1)])))


def explain_unsaved(given: GivenOptimizer) -> list[str]:
    """One sentence for each way in which this code keeps more than a checkpoint holds."""
    small = nn.Parameter(torch.ones(4, 3))
    tried = given.like([small])
    before = storable(vars(tried), TORCHS_OWN)
    state_after_step(tried, small)
    now = storable(vars(tried), TORCHS_OWN)
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
