"""Which rows of a global batch are a rank's: asked when a batch is read, and when one was bad."""

from __future__ import annotations

import numpy as np

from stepladder.plan import Batch, Plan
from stepladder.plan.batch import rank_positions, uneven_rank_rows


def rows_of(plan: Plan, size: int, data_index: int) -> np.ndarray:
    """The rows of a global batch of `size` that a data rank is given, pass after pass."""
    ways, micro = plan.layout.data_ranks, plan.batch.micro
    if size % ways:
        mine = uneven_rank_rows(size, data_index, ways)
        return np.arange(mine.start, mine.stop)
    if micro and size % (micro * ways):  # the last batch of a source that ends
        micro = None
    ranges = rank_positions(0, Batch(size, micro).settle(ways), data_index, ways)
    return np.concatenate([np.arange(r.start, r.stop) for r in ranges])
