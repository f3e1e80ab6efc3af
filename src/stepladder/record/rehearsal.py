"""What the rehearsal of a step found: memory at the peak by owner, and when and where the peak is.

Nothing here needs torch, so that a forecast can carry it: the rehearsal itself is in
`stepladder.rehearse`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .memory_by_owner import Memory

GIB = 2**30


@dataclass(frozen=True, slots=True)
class PeakTensor:
    """A tensor at the peak, and who made it."""

    num_bytes: int
    owner: str
    module: str  # at work when it was made
    phase: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rank's memory over the rehearsed steps."""

    plan: str
    ranks: int
    rank: int
    device: str
    memory: Memory  # at the peak of what was allocated
    phase: str  # of the step, at the peak
    module: str  # at work at the peak
    peaks: dict[str, int]  # the most allocated in each phase
    largest: tuple[PeakTensor, ...]  # tensors at the peak
    allocations: int  # that were made
    notes: tuple[str, ...] = ()  # what is bounded, assumed or left out
    out_of_memory: bool = False  # whether the allocator ran out of the limit given

    @property
    def allocated_bytes(self) -> int:
        """The most that is allocated at a time, as torch.cuda.max_memory_allocated has it."""
        return self.memory.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """The most that the allocator reserves, as torch.cuda.max_memory_reserved has it."""
        return self.memory.reserved_bytes

    def where_it_ends(self, limit_bytes: int) -> str:
        """The moment, the module and the owner of a peak that is too much, in two sentences.

        Args:
            limit_bytes: that the allocator may reserve.
        """
        return (
            f"memory: {self.reserved_bytes / GIB:.2f} GiB are needed and {limit_bytes / GIB:.2f} "
            f"can be used. It ends in {self.at_peak()}."
        )

    def at_peak(self) -> str:
        """The moment of the peak, the module at work, and the largest owner with its largest."""
        owner, owned = self.memory.largest_owner()
        made = next((one for one in self.largest if one.owner == owner), None)
        place = f"in {made.module} " if made and made.module else ""
        largest = f", its largest of {made.num_bytes / GIB:.2f} GiB made {place}in " if made else ""
        return (
            f"{self.phase}, at {self.module or 'the whole module'}. Largest owner: {owner}, "
            f"{owned / GIB:.2f} GiB{largest}{made.phase if made else ''}"
        )

    def to_dict(self) -> dict[str, Any]:
        record = asdict(self)
        record["memory"] = self.memory.by_owner()
        return {
            **record,
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
        }


@dataclass(frozen=True, slots=True)
class RehearsedChange:
    """A change to a plan, and what was rehearsed with it."""

    words: str  # as they stand in a plan
    rehearsal: Rehearsal  # of the rank that needs most
    freed_bytes: int  # of what is allocated at the peak
    fits: bool

    def __str__(self) -> str:
        fits = "fits" if self.fits else "does not fit"
        return f"{self.words} (frees {self.freed_bytes / GIB:.2f} GiB, {fits})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "change": self.words,
            "freed_bytes": self.freed_bytes,
            "allocated_bytes": self.rehearsal.allocated_bytes,
            "reserved_bytes": self.rehearsal.reserved_bytes,
            "fits": self.fits,
        }
