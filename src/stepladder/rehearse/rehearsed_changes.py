"""Where memory runs out, and what each change to the plan frees: each of them rehearsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stepladder.errors import StepladderError
from stepladder.plan import Plan

from .named_subject import RehearsalSubject
from .rehearsal import Rehearsal
from .rehearse_kinds import rehearse_kinds

SHOWN, TRIED = 3, 5
GIB = 2**30


@dataclass(frozen=True, slots=True)
class RehearsedChange:
    """A change to a plan, and what was rehearsed with it."""

    words: str  # as they stand in a plan
    rehearsal: Rehearsal  # of the rank that needs most
    freed_bytes: int  # of what is allocated at the peak
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "change": self.words,
            "freed_bytes": self.freed_bytes,
            "allocated_bytes": self.rehearsal.allocated_bytes,
            "reserved_bytes": self.rehearsal.reserved_bytes,
            "fits": self.fits,
        }


def rehearse_changes(
    subject: RehearsalSubject,
    base: Rehearsal,
    changes: Iterable[tuple[str, Plan]],
    *,
    limit_bytes: int,
) -> list[RehearsedChange]:
    """The first changes that free memory, in their order; those that cannot be rehearsed are left.

    Args:
        base: of the plan that is changed.
        changes: words and the plan with them, the cheapest first.
        limit_bytes: that the allocator may reserve.
    """
    found = played(subject, base, changes, limit_bytes)
    freeing = (one for one in found if one.freed_bytes > 0)
    return [one for _, one in zip(range(SHOWN), freeing)]


def played(
    subject: RehearsalSubject,
    base: Rehearsal,
    changes: Iterable[tuple[str, Plan]],
    limit_bytes: int,
) -> Iterator[RehearsedChange]:
    for _, (words, plan) in zip(range(TRIED), changes):
        try:
            most = rehearse_kinds(
                subject.module, plan, sample=subject.sample, loss=subject.loss,
                ranks=base.ranks, device=base.device,
            )[0]  # fmt: skip
        except StepladderError:  # another change may be playable
            continue
        freed = base.allocated_bytes - most.allocated_bytes
        yield RehearsedChange(words, most, freed, most.reserved_bytes <= limit_bytes)


def where_it_ends(found: Rehearsal, limit_bytes: int) -> str:
    """The moment, the module and the owner of a peak that is too much, in a sentence."""
    owner, owned = found.memory.largest_owner()
    made = next((one for one in found.largest if one.owner == owner), None)
    place = f"in {made.module} " if made and made.module else ""
    largest = f", its largest of {made.num_bytes / GIB:.2f} GiB made {place}in " if made else ""
    return (
        f"memory: {found.reserved_bytes / GIB:.2f} GiB are needed and {limit_bytes / GIB:.2f} can "
        f"be used. It ends in {found.phase}, at {found.module or 'the whole module'}. Largest "
        f"owner: {owner}, {owned / GIB:.2f} GiB{largest}{made.phase if made else ''}."
    )
