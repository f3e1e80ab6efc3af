"""The time of collectives: the α–β model of a ring on the cluster's topology.

A group of ranks along one axis sits `per_node` to a node on `nodes` nodes. A ring passes every
byte over every hop, so it runs at the slowest hop: the link inside a node, or the group's share of
the node's network, which all groups of that node use at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from stepladder.hardware import Cluster
from stepladder.plan import AXES, Layout
from stepladder.record import Calibration

# Of a link's rate, reached by large collectives: headers, synchronisation between steps, and for
# networks the imperfect spread of flows over ports.
INSIDE, BETWEEN = 0.82, 0.75
CONGESTION = 0.05  # lost at each doubling of the nodes: flows meet in the switches above them


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A group of ranks that communicate along one axis, and the links between them."""

    ways: int
    nodes: int
    bytes_per_second: float  # of the slowest hop
    inside_latency: float
    between_latency: float

    def gather(self, num_bytes: float) -> float:
        """Seconds of an all-gather of so many bytes in all; a reduce-scatter takes as long."""
        if self.ways == 1:
            return 0.0
        return num_bytes * (self.ways - 1) / self.ways / self.bytes_per_second + self.ring_latency

    def all_reduce(self, num_bytes: float) -> float:
        if self.ways == 1:
            return 0.0
        latency = min(2 * self.ring_latency, self.tree_latency)
        return 2 * num_bytes * (self.ways - 1) / self.ways / self.bytes_per_second + latency

    def exchange(self, num_bytes: float) -> float:
        """Seconds of an all-to-all in which each rank has so many bytes for all of them."""
        if self.ways == 1:
            return 0.0
        latency = self.between_latency if self.nodes > 1 else self.inside_latency
        return num_bytes * (self.ways - 1) / self.ways / self.bytes_per_second + latency

    def send(self, num_bytes: float) -> float:
        """Seconds of one message to the next rank."""
        if self.ways == 1:
            return 0.0
        latency = self.between_latency if self.nodes > 1 else self.inside_latency
        return num_bytes / self.bytes_per_second + latency

    @property
    def ring_latency(self) -> float:
        across = self.nodes if self.nodes > 1 else 0
        return (self.ways - 1 - across) * self.inside_latency + across * self.between_latency

    @property
    def tree_latency(self) -> float:
        """Latency up and down a tree of nodes, or of ranks where there is one node."""
        if self.nodes == 1:
            return 2 * log2(self.ways) * self.inside_latency
        return 2 * log2(self.nodes) * self.between_latency + 2 * self.inside_latency


@dataclass(frozen=True, slots=True)
class Network:
    """Bandwidth and latency of a cluster's links, as collectives reach them."""

    devices_per_node: int
    inside_bytes_per_second: float
    between_bytes_per_second: float  # per node
    inside_latency: float
    between_latency: float

    def group(self, layout: Layout, *axes: str) -> RankGroup:
        """The ranks that differ along these neighbouring axes only."""
        ways, stride = size_and_stride(layout, axes)
        per_node = max(min(ways, self.devices_per_node // stride), 1)
        nodes = max(ways // per_node, 1)
        rate = self.inside_bytes_per_second
        if nodes > 1:
            crowd = 1 + CONGESTION * (log2(nodes) - 1)
            share = self.between_bytes_per_second / crowd * per_node / self.devices_per_node
            rate = share if per_node == 1 else min(rate, share)
        return RankGroup(ways, nodes, rate, self.inside_latency, self.between_latency)


def size_and_stride(layout: Layout, axes: tuple[str, ...]) -> tuple[int, int]:
    """How many ranks a group of these axes has, and how far apart in rank they stand."""
    ways, stride = 1, 1
    for axis, size in zip(reversed(AXES), reversed(layout.shape)):
        if axis in axes:
            ways *= size
        elif ways == 1:
            stride *= size
    return ways, stride


def network_of(cluster: Cluster, calibration: Calibration | None = None) -> Network:
    found = calibration or Calibration()
    inside, between = cluster.inside, cluster.between
    return Network(
        cluster.devices_per_node,
        found.inside_bytes_per_second or inside.bytes_per_second * INSIDE,
        found.between_bytes_per_second or between.bytes_per_second * BETWEEN,
        found.inside_latency_seconds or inside.latency_seconds,
        between.latency_seconds,
    )
