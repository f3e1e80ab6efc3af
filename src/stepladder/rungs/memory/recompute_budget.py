"""Which blocks to recompute so that activations fit a number of bytes.

Each block has three depths: `kept` (nothing is recomputed), `cheap` (all but matmuls and attention)
and `whole`. While backward works on block i, the blocks after it are freed, those before it hold
what their depth saves, and block i itself is held in full:

    held(i) = kept_i + Σ_{j<i} bytes_j(depth_j)

The largest of these must fit. Depths grow from the front, first `cheap` one block after another and
only then `whole`, because `cheap` costs a few percent of a block's time and `whole` a third.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from stepladder.errors import PlanError
from stepladder.model import Anatomy

Depth = Literal["kept", "cheap", "whole"]
GIB = 2**30


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Bytes that one block saves for backward, at each depth."""

    kept_bytes: int  # all that backward reads
    cheap_bytes: int  # inputs, matmuls and attention
    whole_bytes: int  # inputs alone

    def at(self, depth: Depth) -> int:
        sizes = {"kept": self.kept_bytes, "cheap": self.cheap_bytes, "whole": self.whole_bytes}
        return sizes[depth]

    def worth(self, depth: Depth) -> Depth:
        """The depth, or `kept` where recomputing would save nothing."""
        return depth if self.at(depth) < self.kept_bytes else "kept"

    def times(self, num_sequences: float) -> BlockCost:
        """The cost of a micro-batch so many times larger than the one measured."""
        sizes = (self.kept_bytes, self.cheap_bytes, self.whole_bytes)
        return BlockCost(*(round(size * num_sequences) for size in sizes))


def held_bytes(costs: Sequence[BlockCost], depths: Sequence[Depth]) -> int:
    """The most that the blocks hold at once during backward."""
    before, most = 0, 0
    for cost, depth in zip(costs, depths):
        most = max(most, before + cost.kept_bytes)
        before += cost.at(depth)
    return most


def fit_budget(costs: Sequence[BlockCost], budget_bytes: int) -> list[Depth]:
    """The least recomputation that keeps the blocks within the budget."""
    depths: list[Depth] = ["kept"] * len(costs)
    for deeper in deepen(len(costs)):
        if held_bytes(costs, depths) <= budget_bytes:
            return depths
        depths = [cost.worth(depth) for cost, depth in zip(costs, deeper)]
    least = held_bytes(costs, depths)
    if least <= budget_bytes:
        return depths
    raise PlanError(
        "recompute",
        f"{len(costs)} blocks hold {least / GIB:.3g} GiB even with every block recomputed, "
        f"and the budget is {budget_bytes / GIB:.3g} GiB",
        f"Give them {round_up(least):g}GiB, or halve micro.",
    )


def deepen(num_blocks: int) -> Iterator[list[Depth]]:
    """Every choice after the cheapest, each one block deeper than the one before."""
    steps: tuple[tuple[Depth, Depth], ...] = (("cheap", "kept"), ("whole", "cheap"))
    for deep, shallow in steps:
        for count in range(1, num_blocks + 1):
            yield [deep] * count + [shallow] * (num_blocks - count)


def round_up(num_bytes: int) -> float:
    """GiB with two decimals that hold this many bytes."""
    return -(-num_bytes * 100 // GIB) / 100


def in_order(
    costs: Sequence[BlockCost] | None, listed: Anatomy, run: Anatomy
) -> Sequence[BlockCost] | None:
    """What blocks cost, in the order a pipeline runs them; None where nobody measured them all."""
    known = dict(zip(listed.blocks, costs or ()))
    return [known[name] for name in run.blocks] if known and known.keys() >= {*run.blocks} else None
