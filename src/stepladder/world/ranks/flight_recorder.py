"""What torch knows of this process's collectives: its flight recorder, and its groups' counts.

The backend is told and not asked for: torch answers only while its default group is open, and who
looks from another thread may find it closed.
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
    """What torch's flight recorder holds of this process; nothing where this torch has none."""
    dump = flight_recorder(backend)
    return pickle.loads(dump(calls, calls, False)) if dump else {}  # its own memory, not a file


def read_counts(backend: str) -> dict[Any, tuple[int, int]]:
    """Collectives called and done, by the recorder's own number of the group."""
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
    """The collective this rank called last in one of these groups, where it is known."""
    for entry in reversed(read_recorder(backend, calls=True).get("entries", [])):
        if entry["process_group"][0] in names:
            return [(entry["process_group"][0], entry["collective_seq_id"])]
    return []
