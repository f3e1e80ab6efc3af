"""The order of samples that are dear to reach: neighbours are read together.

A row group is decoded whole, so windows drawn from everywhere would decode one for each window.
Here an epoch walks blocks of neighbouring windows: the blocks in a shuffled order, a few of them at
a time, and the windows of those few shuffled among each other. Like the plain order it is computed,
so any position costs the same and a resumed run needs one integer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .sample_order import Integers, Order


@dataclass(frozen=True, slots=True)
class Nearby:
    """Every index once per epoch, `together` blocks of `block` neighbours at a time."""

    length: int
    block: int
    together: int
    seed: int = 0

    def indices(self, positions: Integers) -> Integers:
        epochs, places = np.divmod(np.asarray(positions, np.int64), self.length)
        blocks = self.length // self.block  # the rest, less than a block, ends each epoch
        whole = self.together * self.block
        found = np.empty(len(places), np.int64)
        groups = places // whole
        last, tail = blocks // self.together, blocks * self.block
        for here, first, size in (
            (places < last * whole, groups * whole, whole),
            ((places >= last * whole) & (places < tail), last * whole, tail - last * whole),
            (places >= tail, tail, self.length - tail),
        ):
            if not here.any():
                continue
            begin = np.broadcast_to(first, places.shape)[here]
            rounds = epochs[here] * (last + 2) + groups[here]  # of its own for each group
            inner = Order(size, self.seed).indices(rounds * size + places[here] - begin)
            found[here] = self._spread(epochs[here], begin, inner, blocks)
        return found

    def _spread(self, epochs: Integers, begin: Integers, inner: Integers, blocks: int) -> Integers:
        """Indices of places that were shuffled inside their group."""
        slots = (begin + inner) // self.block
        inside = slots < blocks
        numbers = slots.copy()
        if inside.any():
            walk = Order(blocks, self.seed + 1)
            numbers[inside] = walk.indices(epochs[inside] * blocks + slots[inside])
        return numbers * self.block + (begin + inner) % self.block
