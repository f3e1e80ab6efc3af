"""What a compiled pass writes to memory, and when each of it is read last.

What is fused away is never allocated: its readers compute it from what lies in memory. Where a
value is not kept for the backward pass, the kernels there compute it again in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepladder.rehearse.recorder import Allocation

from .compiled_graph import Graph, Node
from .kept_for_backward import kept_for_backward, readers_of

MOST_READ = 4  # buffers that a value of several readers is computed from before it is written down
Sources = frozenset[Allocation]


@dataclass(slots=True)
class Lifetimes:
    """Of the storages of one graph that are written to memory."""

    born: dict[Allocation, Node] = field(default_factory=dict)
    last: dict[Allocation, Node] = field(default_factory=dict)  # that reads it


def lifetimes_of(graph: Graph, staying: set[Allocation]) -> Lifetimes:
    """When what the graph makes is allocated and read last.

    Args:
        staying: storages that outlive the graph.
    """
    found, makers = Lifetimes(), graph.made_in(graph.forward)
    read = {one for node in graph.forward for one in node.reads}
    free = {one for one in read if one not in makers} | staying
    kept = kept_for_backward(graph, free) | staying
    needed = {one for node in graph.backward for one in node.reads}
    settle_pass(graph.forward, found, {}, keep=(kept & needed) | staying)
    again: dict[Allocation, Sources] = {}
    for node in graph.forward:
        sources = sources_of(node, again)
        for one in node.writes:
            lost = one in makers and one not in kept and node.fused
            again[one] = sources - {one} if lost else frozenset((one,))
    settle_pass(graph.backward, found, again, keep=staying)
    return found


def sources_of(node: Node, known: dict[Allocation, Sources]) -> Sources:
    """The storages in memory from which an operation is computed."""
    return frozenset().union(*(known.get(one, frozenset((one,))) for one in node.reads))


def settle_pass(
    nodes: list[Node], found: Lifetimes, known: dict[Allocation, Sources], keep: set[Allocation]
) -> None:
    """Settle what the operations of one pass write and read.

    Args:
        known: what values that are not in memory are computed from.
        keep: what must be written to memory.
    """
    readers, made = readers_of(nodes), Graph().made_in(nodes)
    for node in nodes:
        sources, stores = sources_of(node, known), not node.fused
        for one in node.writes:
            if one not in made or one in found.born:  # written in place
                stores = True
            elif is_written(one, node, readers[one], sources, keep):
                found.born[one], stores = node, True
            else:
                known[one] = sources - {one}
        if stores:
            found.last.update(dict.fromkeys(sources, node))


def is_written(
    one: Allocation, node: Node, readers: list[Node], sources: Sources, keep: set[Allocation]
) -> bool:
    """Whether a value that a node makes is written to memory."""
    if not node.fused or one in keep or not node.again:
        return True
    if any(not reader.fused for reader in readers):
        return True
    return len(readers) > 1 and len(sources) > MOST_READ
