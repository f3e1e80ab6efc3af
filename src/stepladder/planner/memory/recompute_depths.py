"""Activation checkpointing: which share of blocks is recomputed selectively, fully or not at all.

`kept` blocks save everything, `cheap` ones the outputs of matmuls and attention (selective), and
`whole` ones only their input. A memory budget is met as training meets it: blocks become selective
one by one, and only when all of them are does the first become fully recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.plan import Recompute


@dataclass(frozen=True, slots=True)
class RecomputeShares:
    """Shares of blocks by what they save; they add up to one."""

    kept: float = 1.0
    cheap: float = 0.0
    whole: float = 0.0

    def mean_bytes(self, kept: float, cheap: float, whole: float) -> float:
        return self.kept * kept + self.cheap * min(cheap, kept) + self.whole * min(whole, kept)


def recompute_shares(
    recompute: Recompute, num_blocks: int, kept: float, cheap: float, whole: float
) -> RecomputeShares:
    """The shares for `num_blocks` blocks, given the bytes that a block saves in each mode."""
    match recompute.kind:
        case "none":
            return RecomputeShares()
        case "blocks":
            return RecomputeShares(0.0, 0.0, 1.0)
        case "selective":
            return RecomputeShares(0.0, 1.0, 0.0)
        case "every":
            share = -(-num_blocks // recompute.every) / max(num_blocks, 1)
            return RecomputeShares(1.0 - share, 0.0, share)
    return meet_budget(recompute.budget_bytes, num_blocks, kept, cheap, whole)


def meet_budget(
    budget: int, num_blocks: int, kept: float, cheap: float, whole: float
) -> RecomputeShares:
    each = (budget - kept) / max(num_blocks - 1, 1)  # one block stands in full while it works
    if each >= kept:
        return RecomputeShares()
    if each >= cheap:
        share = (kept - each) / (kept - cheap)
        return RecomputeShares(1.0 - share, share, 0.0)
    share = min((cheap - each) / (cheap - whole), 1.0) if cheap > whole else 1.0
    return RecomputeShares(0.0, 1.0 - share, share)
