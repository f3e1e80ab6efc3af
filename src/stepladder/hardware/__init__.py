"""Hardware: the device table with peaks and sources, clusters, links (no torch)."""

from .cluster import Cluster
from .device import Device, unknown_device
from .device_table import find_device, recognise_device
from .link import Link

__all__ = [
    "Cluster",
    "Device",
    "Link",
    "find_device",
    "recognise_device",
    "unknown_device",
]
