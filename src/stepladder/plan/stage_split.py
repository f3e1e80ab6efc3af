"""The split of blocks into pipeline stages, used by both training and forecasting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def split_blocks(num_blocks: int, num_stages: int) -> list[range]:
    """Consecutive blocks in stages that differ by at most one; earlier stages get the extra."""
    size, extra = divmod(num_blocks, num_stages)
    starts = [stage * size + min(stage, extra) for stage in range(num_stages + 1)]
    return [range(first, last) for first, last in pairwise(starts)]


def cut_blocks(costs: Sequence[float], num_chunks: int) -> list[range]:
    """The blocks of every stage, counting the stages of all ranks.

    Args:
        costs: of each block; the first carries the entry's too, and the last the exit's.
    """
    if len(set(costs)) == 1:
        return split_blocks(len(costs), num_chunks)
    return balance_blocks(costs, num_chunks)


def chunk_indices(index: int, pipeline: int, virtual: int, folded: bool) -> list[int]:
    """Which stages a rank holds: round-robin, or folded back (first and last on one rank)."""
    if folded:
        return [index, 2 * pipeline - 1 - index]
    return [index + turn * pipeline for turn in range(virtual)]


def balance_blocks(costs: Sequence[float], num_stages: int) -> list[range]:
    """Consecutive blocks in stages whose largest total cost is as small as can be.

    Dynamic programming over prefix sums: best[s][n] is the smallest possible largest stage when
    the first n blocks fill s stages. Every stage keeps at least one block.
    """
    num_blocks = len(costs)
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)
    best = [prefix[n] if n else float("inf") for n in range(num_blocks + 1)]
    cuts: list[list[int]] = []
    for stage in range(2, num_stages + 1):
        row, cut = [float("inf")] * (num_blocks + 1), [0] * (num_blocks + 1)
        for n in range(stage, num_blocks + 1):
            row[n], cut[n] = min(
                (max(best[m], prefix[n] - prefix[m]), m) for m in range(stage - 1, n)
            )
        best, cuts = row, [*cuts, cut]
    edges = [num_blocks]
    for cut in reversed(cuts):
        edges.append(cut[edges[-1]])
    edges.append(0)
    edges.reverse()
    return [range(first, last) for first, last in pairwise(edges)]
