"""Values of targets beside which no weighting of pieces would be right: padding, as a rule.

A loss that adds a mean over targets and a mean over rows can be cut while every target counts. So
where no weighting fits, those are tried that fit all batches without such values, and they are
refused when they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stepladder.data import Batch
from stepladder.errors import DataError

from .observe_pieces import Observation, is_classes
from .weighting import Weighting


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


def refuse_left_out(
    weighting: Weighting | None, batch: Batch, gather: Callable[[int], list[int]]
) -> None:
    """Refuse a batch with targets that the weighting is not right for, on every rank alike.

    Args:
        gather: a number of this rank to those of all data ranks.
    """
    if weighting is None or not weighting.unless:
        return
    found = [
        place for place, value in enumerate(weighting.unless) if (batch.targets == value).any()
    ]
    worst = max(gather(-1 if batch.idle else max(found, default=-1)))
    if worst >= 0:
        value = weighting.unless[worst]
        raise DataError(
            "batch",
            f"has a target of {value}, for which the loss adds means over different things, so no "
            "weighting of its pieces is right",
            "Do not cut the batch: one rank, without micro= and accumulate=; or leave such "
            "rows out.",
        )
