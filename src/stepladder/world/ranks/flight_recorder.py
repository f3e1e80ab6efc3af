"""The collectives of this process: torch's flight recorder, and the call counts of its groups.

The backend is a parameter, because torch knows it only while the default group is open, and another
thread may find it closed.
"""

from __future__ import annotations

import pickle
from typing import Any

from stepladder.seam.process_groups import (
    count_collectives,
    flight_recorder,
    groups_of_this_rank,
)


def read_recorder(backend: str, *, calls: bool) -> dict[str, Any]:
    """The contents of torch's flight recorder; empty if this torch has none."""
    dump = flight_recorder(backend)
    return pickle.loads(dump(calls, calls, False)) if dump else {}  # its own memory, not a file


def read_counts(backend: str) -> dict[Any, tuple[int, int]]:
    """The numbers of the last enqueued and completed collective of each group."""
    status = read_recorder(backend, calls=False).get("pg_status", {})
    return {
        group: (counts["last_enqueued_collective"], counts["last_completed_collective"])
        for group, counts in status.items()
    }


def count_calls() -> dict[str, int]:
    """How many collectives this rank has called in each group."""
    counts = {group.group_name: count_collectives(group) for group in groups_of_this_rank()}
    return {name: count for name, count in counts.items() if count}


def last_call(backend: str, names: list[str]) -> list[tuple[str, int]]:
    """The collective this rank called last in one of these groups, if known."""
    for entry in reversed(read_recorder(backend, calls=True).get("entries", [])):
        if entry["process_group"][0] in names:
            return [(entry["process_group"][0], entry["collective_seq_id"])]
    return []
