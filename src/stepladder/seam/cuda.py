"""What CUDA's caching allocator remembers, and a kernel that only takes time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .lookup import find, has

RECORD = "torch.cuda.memory._record_memory_history"
SNAPSHOT, DUMP = "torch.cuda.memory._snapshot", "torch.cuda.memory._dump_snapshot"
SLEEP = "torch.cuda._sleep"


def records_allocations() -> bool:
    """Whether this torch's allocator can write a history."""
    return has(RECORD) and has(SNAPSHOT) and has(DUMP)


def start_history(max_entries: int) -> None:
    """Have the allocator remember its latest events, with their Python stacks."""
    find(RECORD)(max_entries=max_entries, stacks="python")


def stop_history() -> None:
    find(RECORD)(enabled=None)


def allocation_events(device: torch.device) -> list[dict[str, Any]]:
    """What the allocator did since its history began."""
    return find(SNAPSHOT)(device)["device_traces"][device.index or 0]


def write_history(path: Path) -> None:
    """The history as a file for torch's own viewer."""
    find(DUMP)(str(path))


def sleep_on_device(cycles: int) -> None:
    """Keep the device busy, so that what is queued behind this starts without a gap."""
    find(SLEEP)(cycles)
