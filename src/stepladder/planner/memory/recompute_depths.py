"""How deep each block is recomputed: which share of the blocks keeps what.

`kept` blocks keep all, `cheap` ones keep products and attention, `whole` ones only their input.
A budget is met as the run meets it: blocks become cheap one after another, and only when all are
cheap does the first become whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.plan import Recompute


@dataclass(frozen=True, slots=True)
class Depths:
    """Shares of the blocks; they add up to one."""

    kept: float = 1.0
    cheap: float = 0.0
    whole: float = 0.0

    def mean_bytes(self, kept: float, cheap: float, whole: float) -> float:
        return self.kept * kept + self.cheap * min(cheap, kept) + self.whole * min(whole, kept)


def depths_of(
    recompute: Recompute, num_blocks: int, kept: float, cheap: float, whole: float
) -> Depths:
    """The depths for `num_blocks` blocks that would each hold so many bytes at each depth."""
    match recompute.kind:
        case "none":
            return Depths()
        case "blocks":
            return Depths(0.0, 0.0, 1.0)
        case "selective":
            return Depths(0.0, 1.0, 0.0)
        case "every":
            share = -(-num_blocks // recompute.every) / max(num_blocks, 1)
            return Depths(1.0 - share, 0.0, share)
    return meet_budget(recompute.budget_bytes, num_blocks, kept, cheap, whole)


def meet_budget(budget: int, num_blocks: int, kept: float, cheap: float, whole: float) -> Depths:
    each = (budget - kept) / max(num_blocks - 1, 1)  # one block stands in full while it works
    if each >= kept:
        return Depths()
    if each >= cheap:
        share = (kept - each) / (kept - cheap)
        return Depths(1.0 - share, share, 0.0)
    share = min((cheap - each) / (cheap - whole), 1.0) if cheap > whole else 1.0
    return Depths(0.0, 1.0 - share, share)
