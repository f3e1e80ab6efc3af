"""A cluster: how many of which device, and the links that join them.

What the text leaves out is taken from the device's usual board and *said*: every assumption is a
sentence in `assumptions`. They are how a value is known, not what it is, so two clusters that
differ only there are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stepladder.errors import require_type
from stepladder.services import service

from .cluster_text import ClusterText, parse_cluster_text, write_link, write_memory
from .device import Device
from .link import Link
from .power import write_cap


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices, nodes and links: where a plan runs.

    >>> cluster = Cluster.parse("8 nodes x 8 H100-80GB, 400 Gb/s")
    >>> cluster.num_devices
    64
    """

    device: Device
    num_nodes: int
    devices_per_node: int
    inside: Link  # between devices of a node, per device and direction
    between: Link  # between nodes, per node and direction
    host_memory_bytes: int | None = None  # of one node; None is unknown
    assumptions: tuple[str, ...] = field(default=(), compare=False)

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    @property
    def memory_bytes_per_device(self) -> int | None:
        """Its own memory, or for processors an even share of the host's; None is unknown."""
        if not self.device.is_cpu:
            return self.device.memory_bytes
        if self.host_memory_bytes is None:
            return None
        return self.host_memory_bytes // self.devices_per_node

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Read a cluster from text such as '8 nodes x 8 H100-80GB, 400 Gb/s', or 'here'."""
        require_type("cluster", text, str, "Write one, such as '8 x H100-80GB'.")
        return complete_cluster(parse_cluster_text(text))

    @classmethod
    def detect(cls) -> Cluster:
        """This machine as a cluster. Seeing its devices needs torch, which is loaded now."""
        found: Cluster = service("detect_cluster")()
        return found

    def __str__(self) -> str:
        nodes = "1 node" if self.num_nodes == 1 else f"{self.num_nodes} nodes"
        parts = [f"{nodes} x {self.devices_per_node} {self.device}"]
        parts += [write_link(self.inside), write_link(self.between)]
        if self.host_memory_bytes is not None:
            parts.append(write_memory(self.host_memory_bytes))
        if cap := write_cap(self.device):
            parts.append(cap)
        return ", ".join(parts)


def complete_cluster(pieces: ClusterText) -> Cluster:
    """Fill in what the text leaves out with the device's usual links, and list what was assumed."""
    device, per_node = pieces.device, pieces.devices_per_node
    inside, between = pieces.inside or device.link, pieces.between or device.network
    if pieces.between_per_device:
        between = replace(between, bytes_per_second=between.bytes_per_second * per_node)
    said = []
    if not pieces.nodes_stated and pieces.num_nodes > 1:
        said.append(f"{per_node} {device} in a node, as is usual")
    if pieces.inside is None and per_node > 1:
        said.append(f"{write_link(inside)} inside a node, usual for {device}")
    if pieces.between is None and pieces.num_nodes > 1:
        said.append(f"{write_link(between)} per node between nodes, usual for {device}")
    host = pieces.host_memory_bytes
    return Cluster(device, pieces.num_nodes, per_node, inside, between, host, tuple(said))
