"""The order in which ranks' communications had to happen, whatever the clock says.

A message comes after all that its sender had done and been told before (Lamport's clock); what all
members of a collective do together comes after all that any of them had done.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]  # a line of labs/equipment/recorder.py
MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Communication:
    """One message or collective."""

    place: int  # in the order, from 1
    kind: str
    ranks: tuple[int, ...]  # of a message, from whom and to whom
    bytes: int


@dataclass
class Order:
    """Goes through the ranks' events as far as they explain each other."""

    queues: dict[int, deque[Event]]
    clock: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    in_flight: defaultdict[tuple[int, int], deque[int]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    found: list[Communication] = field(default_factory=list)

    def step(self, rank: int) -> bool:
        """Take the rank's next event, if it can happen now."""
        event = self.queues[rank][0]
        if event["kind"] == "send":
            self.clock[rank] += 1
            self.in_flight[rank, event["peer"]].append(self.clock[rank])
            ends = (rank, event["peer"])
            self.found.append(Communication(self.clock[rank], MESSAGE, ends, event["bytes"]))
        elif event["kind"] == "recv":
            waiting = self.in_flight[event["peer"], rank]
            if not waiting:
                return False
            self.clock[rank] = max(self.clock[rank], waiting.popleft())
        else:
            return self.meet(event)
        self.queues[rank].popleft()
        return True

    def meet(self, event: Event) -> bool:
        """A collective, if as many ranks as take part have come to it."""
        same = [
            rank
            for rank, queue in self.queues.items()
            if queue and (queue[0]["kind"], queue[0]["ways"]) == (event["kind"], event["ways"])
        ]
        if len(same) < event["ways"]:
            return False
        members = tuple(same[: event["ways"]])
        place = 1 + max(self.clock[rank] for rank in members)
        self.clock.update(dict.fromkeys(members, place))
        size = max(self.queues[rank].popleft()["bytes"] for rank in members)
        self.found.append(Communication(place, event["kind"], members, size))
        return True

    def postpone(self) -> bool:
        """Let the first rank that only announces to receive go on with what it sends."""
        for queue in self.queues.values():
            later = next((at for at, one in enumerate(queue) if one["kind"] != "recv"), 0)
            if later and queue[later]["kind"] == "send":
                event = queue[later]
                del queue[later]
                queue.appendleft(event)
                return True
        return False


def communications(act: dict[int, list[Event]]) -> list[Communication]:
    """All communications of the ranks' events, in their order."""
    queues = {rank: deque(e for e in events if "kind" in e) for rank, events in act.items()}
    order = Order(queues)
    while any(queues.values()):
        moved = [order.step(rank) for rank in queues if queues[rank]]
        if not any(moved) and not order.postpone():
            break  # a rank was lost, and what others had begun with it never happened
    return sorted(order.found, key=lambda one: one.place)
