"""Values of targets beside which no weighting of pieces would be right: padding, as a rule.

A loss that adds a mean over targets and a mean over rows can be cut while every target counts. So
where no weighting fits, those are tried that fit all batches without such values, and they are
refused when they come.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .observe_pieces import Observation, is_classes


def left_out(
    seen: Sequence[Observation], outside: Sequence[int], num_classes: int
) -> tuple[int, ...]:
    """Values that were tried as targets, are no class, and are not in the batch.

    A class that this batch lacks comes in another one: nothing is left out because of it.
    """
    before = seen[0].batch.targets
    if not isinstance(before, torch.Tensor) or not is_classes(before):
        return ()
    tried = torch.cat([one.batch.targets.flatten() for one in seen]).unique().tolist()
    known = {*before.unique().tolist(), *range(num_classes)}
    return tuple(v for v in dict.fromkeys(outside) if v in tried and v not in known)


def without(seen: Sequence[Observation], values: Sequence[int]) -> list[Observation]:
    """The observations whose targets have none of the values."""
    return [o for o in seen if not any(bool((o.batch.targets == v).any()) for v in values)]
