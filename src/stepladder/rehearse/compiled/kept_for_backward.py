"""What a compiled forward pass keeps for its backward pass: the cheapest cut between the two.

As torch's partitioner: whatever is needed again is either kept or computed again, in the kernel
that needs it, from what is kept. Products, random numbers and reductions are not computed again,
and nothing is that a library's call of the backward pass reads. What is far from the backward
pass costs more to keep, and twice as much what no call would have written to memory.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import pairwise

from stepladder.rehearse.recorder import Allocation

from .compiled_graph import Graph, Node

FARTHER, FARTHEST = 1.1, 100  # the factor of a step away from backward, and how many are counted
UNWRITTEN = 2
Place = tuple[Allocation, bool]  # before and after its cost
SOURCE: Place = (Allocation(0, "", ""), True)
SINK: Place = (Allocation(0, "", ""), False)


def kept_for_backward(graph: Graph, free: set[Allocation]) -> set[Allocation]:
    """The storages that live from the forward pass into the backward pass.

    Args:
        free: that live anyway, such as parameters.
    """
    makers = graph.made_in(graph.forward)
    needed = {one for node in graph.backward for one in node.reads}
    fixed = {one for node in graph.backward if not node.fused for one in node.reads}
    fixed |= graph.saved
    flows = Flows()
    distance = distances(graph, needed)
    readers = readers_of(graph.forward + graph.backward)
    apart = used_far_apart(graph.forward, makers)
    for one, cost in costs(graph, makers, distance, readers, free).items():
        flows.allow((one, False), (one, True), cost)
        written = makers.get(one)
        if (
            written is None
            or one in fixed
            or not all(node.again and node not in apart for node in written)
        ):
            flows.allow(SOURCE, (one, False), math.inf)
        else:
            for node in written:
                for read in node.reads:
                    if read is not one:
                        flows.allow((read, True), (one, False), math.inf)
        if one in needed:
            flows.allow((one, True), SINK, math.inf)
    reached = flows.reached_at_most()
    return {
        one for one, after in reached if not after and (one, True) not in reached and one in makers
    }


def used_far_apart(nodes: list[Node], makers: dict[Allocation, list[Node]]) -> set[Node]:
    """Operations that are not computed again: what they read was read before by another kernel.

    The stream of a transformer's blocks is read by the next norm, and far later by the next sum:
    computed again, both would need what came before it.
    """
    order, readers = {node: place for place, node in enumerate(nodes)}, readers_of(nodes)
    found: set[Node] = set()
    for one, made in makers.items():
        users = [node for node in readers[one] if node not in made]
        if len(users) > 1 and all(node.fused for node in made):
            first = first_apart(made[0], max(order[user] for user in users), order, readers)
            found.update(user for user in users if user.fused and order[user] > first)
    return found


def first_apart(
    start: Node, last: int, order: dict[Node, int], readers: dict[Allocation, list[Node]]
) -> int:
    """The place of the first operation, up to the last, that no fused chain from here reaches."""
    waiting, seen = [(order[start], True)], {start}
    nodes = tuple(order)
    while waiting:
        place, fused = heappop(waiting)
        if not fused:
            return place
        for one in nodes[place].writes:
            for user in readers[one]:
                if user not in seen and order[user] <= last:
                    seen.add(user)
                    heappush(waiting, (order[user], user.fused))
    return last


def costs(
    graph: Graph,
    makers: dict[Allocation, list[Node]],
    distance: dict[Allocation, int],
    readers: dict[Allocation, list[Node]],
    free: set[Allocation],
) -> dict[Allocation, float]:
    """What keeping a storage costs."""
    found: dict[Allocation, float] = {}
    for one in (*makers, *(read for node in graph.forward for read in node.reads)):
        far = FARTHER ** max(1, min(distance.get(one, FARTHEST), FARTHEST))
        made = makers.get(one, [])
        fused = bool(made) and all(node.fused for node in (*made, *readers.get(one, [])))
        found[one] = 0.0 if one in free else one.num_bytes * far * (UNWRITTEN if fused else 1)
    return found


def readers_of(nodes: Iterable[Node]) -> dict[Allocation, list[Node]]:
    found: dict[Allocation, list[Node]] = defaultdict(list)
    for node in nodes:
        for one in node.reads:
            found[one].append(node)
    return found


def distances(graph: Graph, needed: set[Allocation]) -> dict[Allocation, int]:
    """Operations from a storage to the first of the backward pass that follows from it."""
    found = dict.fromkeys(needed, 1)
    for node in reversed(graph.forward):
        near = min((found[one] for one in node.writes if one in found), default=None)
        if near is not None:
            for one in node.reads:
                found[one] = min(found.get(one, near + 1), near + 1)
    return found


class Flows:
    """The largest flow from the source to the sink, by shortest paths (Dinic)."""

    def __init__(self) -> None:
        self.left: dict[Place, dict[Place, float]] = defaultdict(dict)

    def allow(self, start: Place, end: Place, most: float) -> None:
        self.left[start][end] = max(self.left[start].get(end, 0.0), most)
        self.left[end].setdefault(start, 0.0)

    def reached_at_most(self) -> set[Place]:
        """What the source still reaches when no more can flow: this side of the cheapest cut."""
        while (levels := self.levels()).get(SINK) is not None:
            while self.push(levels) > 0:
                pass
        return set(levels)

    def levels(self) -> dict[Place, int]:
        found, waiting = {SOURCE: 0}, deque([SOURCE])
        while waiting:
            here = waiting.popleft()
            for there, most in self.left[here].items():
                if most > 0 and there not in found:
                    found[there] = found[here] + 1
                    waiting.append(there)
        return found

    def push(self, levels: dict[Place, int]) -> float:
        """Send as much as one path takes; a dead end is not tried again on these levels."""
        path: list[Place] = [SOURCE]
        while path[-1] != SINK:
            here = path[-1]
            step = next(
                (
                    there
                    for there, most in self.left[here].items()
                    if most > 0 and levels.get(there) == levels[here] + 1
                ),
                None,
            )
            if step is not None:
                path.append(step)
                continue
            if here == SOURCE:
                return 0.0
            del levels[path.pop()]
        most = min(self.left[a][b] for a, b in pairwise(path))
        for a, b in pairwise(path):
            self.left[a][b] -= most
            self.left[b][a] += most
        return most
