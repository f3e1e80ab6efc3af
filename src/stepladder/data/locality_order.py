"""A shuffled order that reads neighbouring samples together, for formats decoded in blocks.

A Parquet row group is decoded whole, so windows drawn from everywhere would decode a row group for
each window. Here an epoch visits blocks of neighbouring windows: the blocks in a shuffled order, a
few at a time, and the windows of those few shuffled among each other. Like `SampleOrder` it is
computed, so any position costs the same and a resumed run needs one integer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .sample_order import Integers, SampleOrder


@dataclass(frozen=True, slots=True)
class LocalityOrder:
    """Every index once per epoch, `blocks_together` blocks of `block` neighbours at a time."""

    length: int
    block: int
    blocks_together: int
    seed: int = 0

    def indices(self, positions: Integers) -> Integers:
        epochs, places = np.divmod(np.asarray(positions, np.int64), self.length)
        blocks = self.length // self.block  # the remainder, less than a block, ends each epoch
        whole = self.blocks_together * self.block
        found = np.empty(len(places), np.int64)
        groups = places // whole
        last, tail = blocks // self.blocks_together, blocks * self.block
        for here, first, size in (
            (places < last * whole, groups * whole, whole),
            ((places >= last * whole) & (places < tail), last * whole, tail - last * whole),
            (places >= tail, tail, self.length - tail),
        ):
            if not here.any():
                continue
            begin = np.broadcast_to(first, places.shape)[here]
            rounds = epochs[here] * (last + 2) + groups[here]  # a different shuffle for each group
            inner = SampleOrder(size, self.seed).indices(rounds * size + places[here] - begin)
            found[here] = self._spread(epochs[here], begin, inner, blocks)
        return found

    def _spread(self, epochs: Integers, begin: Integers, inner: Integers, blocks: int) -> Integers:
        """The indices at places already shuffled within their group of blocks."""
        slots = (begin + inner) // self.block
        inside = slots < blocks
        numbers = slots.copy()
        if inside.any():
            walk = SampleOrder(blocks, self.seed + 1)
            numbers[inside] = walk.indices(epochs[inside] * blocks + slots[inside])
        return numbers * self.block + (begin + inner) % self.block
