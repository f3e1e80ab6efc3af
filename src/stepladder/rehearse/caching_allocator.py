"""A model of torch's CUDA caching allocator: what it hands out, and what it reserves for that.

As in c10/cuda/CUDACachingAllocator.cpp, with its default settings: sizes are rounded up to 512
bytes; requests of up to 1 MiB are cut from segments of 2 MiB, up to 10 MiB from segments of 20 MiB,
larger ones get a segment of their own, rounded up to 2 MiB; the smallest free block that fits, on
the same stream, is taken, and split where enough is left; neighbours that are free become one.
A CPU's allocator hands out what is asked for and keeps nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

BLOCK = 512
SMALL = 2**20  # the largest request that is cut from a small segment
SMALL_SEGMENT = 2 * 2**20
LARGE_SEGMENT = 20 * 2**20
OWN_SEGMENT = 10 * 2**20  # from here on a request has a segment of its own
ROUND_SEGMENT = 2 * 2**20


def rounded(num_bytes: int) -> int:
    """The size of the block that a request needs."""
    return max(BLOCK, -(-num_bytes // BLOCK) * BLOCK)


def segment_bytes(size: int) -> int:
    """What is asked of the device for a block of that size."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // ROUND_SEGMENT) * ROUND_SEGMENT


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment."""

    size: int
    stream: int
    small: bool
    order: int  # of its address
    free: bool = False
    before: Block | None = None  # neighbours in the segment
    after: Block | None = None


@dataclass(slots=True)
class CachingAllocator:
    """What is handed out and reserved, now and at most."""

    limit_bytes: int | None = None  # of the device; None: never full
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    out_of_memory: int = 0  # requests that were more than the device has
    _free: dict[tuple[int, bool], list[tuple[int, int, Block]]] = field(default_factory=dict)
    _next: int = 0

    def allocate(self, num_bytes: int, stream: int = 0) -> Block:
        size = rounded(num_bytes)
        small = size <= SMALL
        block = self._take(size, stream, small) or self._segment(size, stream, small)
        left = block.size - size
        if left >= BLOCK if small else left > SMALL:
            self._split(block, size)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block) -> None:
        self.allocated -= block.size
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self._remove(neighbour)
                block = self._join(*sorted((neighbour, block), key=lambda one: one.order))
        self._add(block)

    def empty_cache(self) -> int:
        """Give back segments that are free as a whole; how many bytes they had."""
        whole = [
            block
            for blocks in self._free.values()
            for _, _, block in blocks
            if block.before is None and block.after is None
        ]
        for block in whole:
            self._remove(block)
        given = sum(block.size for block in whole)
        self.reserved -= given
        return given

    def _segment(self, size: int, stream: int, small: bool) -> Block:
        wanted = segment_bytes(size)
        if self._lacks(wanted):
            self.empty_cache()
            self.out_of_memory += self._lacks(wanted)
        self.reserved += wanted
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._next += 2**60  # addresses of segments are apart, those in one are in order
        return Block(wanted, stream, small, self._next)

    def _lacks(self, wanted: int) -> bool:
        return self.limit_bytes is not None and self.reserved + wanted > self.limit_bytes

    def _take(self, size: int, stream: int, small: bool) -> Block | None:
        pool = self._free.get((stream, small), [])
        place = bisect_left(pool, size, key=lambda entry: entry[0])
        if place == len(pool):
            return None
        block = pool.pop(place)[2]
        block.free = False
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.size - size, block.stream, block.small, block.order + size)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._add(rest)

    def _join(self, first: Block, second: Block) -> Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _add(self, block: Block) -> None:
        block.free = True
        pool = self._free.setdefault((block.stream, block.small), [])
        insort(pool, (block.size, block.order, block), key=lambda entry: entry[:2])

    def _remove(self, block: Block) -> None:
        block.free = False
        pool = self._free[block.stream, block.small]
        place = bisect_left(pool, (block.size, block.order), key=lambda entry: entry[:2])
        assert pool[place][2] is block
        del pool[place]
