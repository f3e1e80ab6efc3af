"""The sample order (data order) of a run: which index of a source is read at which position.

Position p of a run is epoch p // length, place p % length, and the index there is a keyed
permutation of that place. The permutation is computed, not stored: a Feistel network of keyed xor
rounds permutes the numbers below the next power of two, and a result outside the source is permuted
again until it lies inside ("cycle walking", Black and Rogaway 2002). So a lookup costs the same for
ten samples or ten billion, a resumed run needs one integer, and every rank computes the same order
without communication.

A stored shuffle was not used: it costs 8 bytes per sample on every rank and ties a run to the
version of the library that shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepladder.errors import DataError

ROUNDS = 8  # four for each half; with three the tests already see no pattern
BLOCK = 4096  # positions looked up together
WORD = (1 << 64) - 1
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """Every index once per epoch, reshuffled each epoch by the seed."""

    length: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.length < 1:
            raise DataError(
                "order.length", f"{self.length} samples have no order", "Use at least 1."
            )

    def indices(self, positions: Integers) -> Integers:
        """The source's index at each position of the run."""
        positions = np.asarray(positions, dtype=np.int64)
        if not self.shuffle:
            return positions % self.length
        if not len(positions) or np.ptp(positions) >= BLOCK:
            return _shuffled(positions, self.length, self.seed)
        # A step asks for a few neighbours; numpy takes as long for them as for a whole block.
        first = int(positions.min()) // BLOCK
        last = int(positions.max()) // BLOCK
        near = [_block(number, self.length, self.seed) for number in range(first, last + 1)]
        return np.concatenate(near)[positions - first * BLOCK]


@lru_cache(maxsize=64)
def _block(number: int, length: int, seed: int) -> Integers:
    return _shuffled(np.arange(number * BLOCK, (number + 1) * BLOCK), length, seed)


def _shuffled(positions: Integers, length: int, seed: int) -> Integers:
    epochs, places = np.divmod(positions, length)
    keys = mix(mix(np.full(epochs.shape, seed & WORD, np.uint64)) + epochs.astype(np.uint64))
    return _permute(places.astype(np.uint64), keys, length).astype(np.int64)


def _permute(places: Words, keys: Words, length: int) -> Words:
    # The xor network is slightly uneven on a handful of samples; a keyed rotation makes every index
    # equally likely at every place.
    rotated = (places + mix(~keys) % np.uint64(length)) % np.uint64(length)
    found = _scramble(rotated, keys, (length - 1).bit_length())
    while (outside := found >= length).any():
        found[outside] = _scramble(found[outside], keys[outside], (length - 1).bit_length())
    return found


def _scramble(values: Words, keys: Words, bits: int) -> Words:
    """Permute numbers of `bits` bits: each half in turn is xored with a hash of the other."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    high, low = values >> low_bits, values & low_mask
    for number in range(0, ROUNDS, 2):
        high = high ^ (mix(low ^ mix(keys + np.uint64(number))) & high_mask)
        low = low ^ (mix(high ^ mix(keys + np.uint64(number + 1))) & low_mask)
    return (high << low_bits) | low


def mix(words: Words) -> Words:
    """Spread every bit over all 64 (the finalizer of SplitMix64, Steele, Lea and Flood 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
