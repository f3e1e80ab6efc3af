"""Which rows of a global batch are a rank's: asked when a batch is read, and when one was bad."""

from __future__ import annotations

import numpy as np

from stepladder.plan import BatchSplit, Plan
from stepladder.plan.batch import rank_positions, uneven_rank_rows


def rows_of(plan: Plan, size: int, data_index: int) -> np.ndarray:
    """The rows of a global batch of `size` that a data rank is given, pass after pass."""
    ways, micro = plan.layout.data_ranks, rows_in_turn(plan, size)
    if size % ways:
        mine = uneven_rank_rows(size, data_index, ways)
        return np.arange(mine.start, mine.stop)
    if micro and size % (micro * ways):  # the last batch of a source that ends
        micro = None
    ranges = rank_positions(0, BatchSplit(size, micro).settle(ways), data_index, ways)
    return np.concatenate([np.arange(r.start, r.stop) for r in ranges])


def rows_in_turn(plan: Plan, size: int) -> int | None:
    """Rows that are dealt out to ranks at a time; None: each has all of its rows in one piece.

    Slices of `exact=ranks` are neighbours on a rank, and dealt out in turn where gradients are
    sharded: see [Note: one tree for every layout] in slices.py.
    """
    if not plan.exact.slices:
        return plan.batch.micro
    return size // plan.exact.slices if plan.zero >= 2 else None
