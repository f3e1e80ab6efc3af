"""What each change to a plan frees: each of them rehearsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepladder.errors import StepladderError
from stepladder.plan import Plan
from stepladder.record import Rehearsal
from stepladder.record.rehearsal import RehearsedChange

from .named_subject import RehearsalSubject
from .rehearse_kinds import rehearse_kinds

SHOWN, TRIED = 3, 5


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
