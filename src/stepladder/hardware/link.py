"""Links between devices as two numbers, a latency and a bandwidth: the α–β model of a network.

A message of n bytes takes `latency_seconds + n / bytes_per_second`. Bandwidths are what one party
can send in one direction while receiving as much in the other. Vendors quote NVLink, Infinity
Fabric and PCIe as the sum of both directions and networks as one; `KINDS` knows which, so that
"NVLink 900 GB/s" and "400 Gb/s" both mean what their datasheets mean.

Latencies are those of one step of a collective, not of a bare packet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkKind:
    """What is true of every link of one technology."""

    name: str
    inside: bool  # joins the devices of one node, rather than nodes
    quoted_directions: int  # how many directions the vendor's bandwidth adds up
    latency_seconds: float
    source: str


@dataclass(frozen=True, slots=True)
class Link:
    """A connection between devices or nodes: its bandwidth and latency."""

    kind: str
    latency_seconds: float
    bytes_per_second: float  # one direction

    def seconds(self, num_bytes: float) -> float:
        """Say how long one message of that size takes on an idle link."""
        return self.latency_seconds + num_bytes / self.bytes_per_second


_NCCL = "NCCL src/graph/tuning.cc, hwLat of a ring with the Simple protocol"
_RCCL = "RCCL src/graph/tuning.cc, hwLat of a ring with the Simple protocol"
_GUESS = "an estimate, not a published figure: calibrate to replace it"
_BOOK = "How to Scale Your Model, 2025: about a microsecond a hop"

KINDS = {
    kind.name: kind
    for kind in (
        LinkKind("NVLink", True, 2, 3.4e-6, _NCCL),
        LinkKind("Infinity Fabric", True, 2, 3.6e-6, _RCCL),
        LinkKind("PCIe", True, 2, 5.7e-6, _NCCL),
        LinkKind("ICI", True, 1, 1e-6, _BOOK),
        LinkKind("on-board RoCE", True, 1, 14e-6, f"as a network: {_NCCL}"),
        LinkKind("shared memory", True, 1, 20e-6, _GUESS),
        LinkKind("InfiniBand", False, 1, 14e-6, _NCCL),
        LinkKind("RoCE", False, 1, 14e-6, _NCCL),
        LinkKind("EFA", False, 1, 30e-6, _GUESS),
        LinkKind("Ethernet", False, 1, 50e-6, _GUESS),
        LinkKind("network", False, 1, 14e-6, f"unnamed, taken for RDMA: {_NCCL}"),
    )
}


def usual_link(kind: str, bytes_per_second: float) -> Link:
    """Make a link of that kind with the latency its kind usually has."""
    return Link(kind, KINDS[kind].latency_seconds, bytes_per_second)
