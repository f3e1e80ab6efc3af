"""What each change to a plan frees: each of them rehearsed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from stepladder.errors import StepladderError
from stepladder.plan import Plan
from stepladder.record import Rehearsal
from stepladder.record.rehearsal import RehearsedChange

from .named_subject import RehearsalSubject
from .rehearse_kinds import rehearse_kinds

SHOWN, TRIED = 3, 5
WORTH = 0.01  # of a peak: a change that frees less is not told
CLEARLY = 0.97  # of what has failed: what needs more may fail too


def rehearse_changes(
    subject: RehearsalSubject,
    base: Rehearsal,
    changes: Iterable[tuple[str, Plan]],
    *,
    limit_bytes: int,
    seconds: float | None = None,
) -> list[RehearsedChange]:
    """The first changes that free memory, in their order; those that cannot be rehearsed are left.

    Args:
        base: of the plan that is changed.
        changes: words and the plan with them, the cheapest first.
        limit_bytes: that the allocator may reserve.
        seconds: after which no further change is begun.
    """
    end = None if seconds is None else time.monotonic() + seconds
    found = played(subject, base, changes, limit_bytes, end)
    freeing = (one for one in found if one.freed_bytes > WORTH * base.allocated_bytes)
    return [one for _, one in zip(range(SHOWN), freeing)]


def played(
    subject: RehearsalSubject,
    base: Rehearsal,
    changes: Iterable[tuple[str, Plan]],
    limit_bytes: int,
    end: float | None,
) -> Iterator[RehearsedChange]:
    for _, (words, plan) in zip(range(TRIED), changes):
        if end is not None and time.monotonic() > end:
            return
        try:
            most = rehearse_kinds(
                subject.module, plan, sample=subject.sample, loss=subject.loss,
                ranks=base.ranks, device=base.device,
            )[0]  # fmt: skip
        except StepladderError:  # another change may be playable
            continue
        freed = base.allocated_bytes - most.allocated_bytes
        yield RehearsedChange(words, most, freed, most.reserved_bytes <= limit_bytes)


def rehearse_failure(
    module: nn.Module,
    plan: Plan,
    changes: Iterable[tuple[str, Plan]],
    *,
    sample: Any,
    loss: Any,
    device: str,
    limit_bytes: int,
    seconds: float,
) -> tuple[Rehearsal, list[RehearsedChange]]:
    """A step of one rank that found no memory, rehearsed, and what changes to its plan free.

    Args:
        module: without what the ladder did to it.
        seconds: after which no further change is begun.
    """
    subject = RehearsalSubject(module, sample, loss)
    (base,) = rehearse_kinds(module, plan, sample=sample, loss=loss, device=device)
    return base, rehearse_changes(
        subject, base, changes, limit_bytes=min(limit_bytes, round(CLEARLY * base.reserved_bytes)),
        seconds=seconds,
    )  # fmt: skip
