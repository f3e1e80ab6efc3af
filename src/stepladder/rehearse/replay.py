"""The recorded events, replayed: the peak, what was held there, and what an allocator reserves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stepladder.record import Memory
from stepladder.record.rehearsal import PeakTensor

from .caching_allocator import Block, CachingAllocator
from .recorder import BUILDING, Allocation, Event, owner_in_the_end

LARGEST = 12  # tensors that are listed


def stream_of(one: Allocation) -> int:
    """Buffers of collectives come from a pool of their own stream."""
    return int(owner_in_the_end(one) == "communication")


@dataclass(slots=True)
class Replay:
    """The recorded events, in order, through an allocator."""

    caching: bool  # or what is asked for is handed out
    limit_bytes: int | None = None
    peaks: Counter[str] = field(default_factory=Counter)
    peak_bytes: int = 0
    at_peak: tuple[int, str, str] = (0, "", "")  # the event's number, its phase and module
    reserved_bytes: int = 0
    short: bool = False

    def run(self, events: list[Event]) -> None:
        allocator = CachingAllocator(self.limit_bytes)
        blocks: dict[Allocation, Block] = {}
        allocated, ready = 0, False
        for index, event in enumerate(events):
            one = event.allocation
            if not one.num_bytes:
                continue
            if not ready and event.phase != BUILDING:  # whole modules are cut on the host
                allocator, ready = CachingAllocator(self.limit_bytes), True
                blocks = {
                    each: allocator.allocate(each.num_bytes, stream_of(each)) for each in blocks
                }
            if self.caching:
                if event.born:
                    blocks[one] = allocator.allocate(one.num_bytes, stream_of(one))
                else:
                    allocator.release(blocks.pop(one))
                allocated = allocator.allocated
            else:
                allocated += one.num_bytes if event.born else -one.num_bytes
            self.peaks[event.phase] = max(self.peaks[event.phase], allocated)
            if allocated > self.peak_bytes and event.phase != BUILDING:
                self.peak_bytes, self.at_peak = allocated, (index, event.phase, event.module)
        self.reserved_bytes = allocator.peak_reserved if self.caching else self.peak_bytes
        self.short = bool(allocator.out_of_memory)

    def held(self, events: list[Event]) -> list[Allocation]:
        """What is allocated at the peak."""
        there: dict[Allocation, None] = {}
        for event in events[: self.at_peak[0] + 1]:
            if event.born:
                there[event.allocation] = None
            else:
                there.pop(event.allocation, None)
        return [one for one in there if one.num_bytes]

    def memory(self, events: list[Event]) -> Memory:
        """The peak by owner; what blocks have beyond their tensors is temporary."""
        sizes: Counter[str] = Counter()
        for one in self.held(events):
            sizes[owner_in_the_end(one)] += one.num_bytes
        sizes["temporary"] += self.peak_bytes - sizes.total()
        return Memory(**sizes, reserved=self.reserved_bytes - self.peak_bytes)

    def largest(self, events: list[Event]) -> tuple[PeakTensor, ...]:
        found = sorted(self.held(events), key=lambda one: -one.num_bytes)[:LARGEST]
        return tuple(
            PeakTensor(one.num_bytes, owner_in_the_end(one), one.module, one.phase, one.shape)
            for one in found
        )
