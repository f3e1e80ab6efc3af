"""A step on two clocks: the host asks for one operation after another, the device does them in
order, and neither waits for the other but where it must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .operations import COLLECTIVE, Operation
from .prices import Price

AHEAD_SECONDS = 4e-6  # from asking for a kernel to its start


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step among others like it."""

    seconds: float  # from its end to the end of the next
    device_seconds: float  # of them with the device at work
    host_seconds: float  # that the host takes to ask for it
    exposed_seconds: float  # that the device waits for a message


def play(operations: Sequence[Operation], prices: Sequence[Price], *, processor: bool) -> Timeline:
    """A step after another: what the first takes longer, because nothing was asked for, is left."""
    host = device = comm = exposed = busy = 0.0
    ready: dict[int, float] = {}
    ends = []
    for _ in range(2):
        exposed = busy = 0.0
        before = host
        for one, price in zip(operations, prices):
            if processor:
                device += price.device + price.host
                busy += price.device
                continue
            host += price.host
            if not price.device:
                continue
            needed = max((ready.get(piece.storage, 0.0) for piece in one.reads), default=0.0)
            if one.kind == COLLECTIVE:
                made = [piece.storage for piece in one.reads if piece.storage not in ready]
                start = max(comm, host + AHEAD_SECONDS, needed, device if made else 0.0)
                comm = start + price.device
                ready.update((piece.storage, comm) for piece in one.writes)
                continue
            free = max(device, host + AHEAD_SECONDS)
            exposed += max(needed - free, 0.0)
            device = max(free, needed) + price.device
            busy += price.device
        ends.append(device)
        asked = host - before
    return Timeline(ends[1] - ends[0], busy, 0.0 if processor else asked, exposed)
