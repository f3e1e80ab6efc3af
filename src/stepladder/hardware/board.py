"""The board a device usually sits on: its links to other devices, to the host and to other nodes.

A row of the device table states its own numbers and names its board; the board's are assumed when
a cluster does not state its links, and the cluster says so. All figures are one direction.
"""

from __future__ import annotations

from dataclasses import dataclass

from .link import Link, usual_link

GIGABIT = 1e9 / 8

PCIE3, PCIE4, PCIE5 = 16e9, 32e9, 64e9  # sixteen lanes; the standards' rates, rounded as sold


@dataclass(frozen=True, slots=True)
class Board:
    link: Link  # between two devices of a node, per device
    host_bytes_per_second: float | None  # between a device and host memory
    devices_per_node: int
    network: Link  # between nodes, per node


def nvlink(total: float, host: float, num_devices: int, network_gigabits: float) -> Board:
    """Describe a node joined by NVLink; `total` adds both directions, as NVIDIA quotes it."""
    network = usual_link("InfiniBand", network_gigabits * GIGABIT)
    return Board(usual_link("NVLink", total / 2), host, num_devices, network)


def infinity_fabric(total: float, host: float, num_devices: int, network_gigabits: float) -> Board:
    """Describe a node joined by Infinity Fabric; `total` adds both directions, as AMD quotes it."""
    network = usual_link("InfiniBand", network_gigabits * GIGABIT)
    return Board(usual_link("Infinity Fabric", total / 2), host, num_devices, network)


def pcie_cards(lane: float, num_devices: int, network_gigabits: float) -> Board:
    """Describe a server or workstation of plain PCIe cards on Ethernet."""
    network = usual_link("Ethernet", network_gigabits * GIGABIT)
    return Board(usual_link("PCIe", lane), lane, num_devices, network)
