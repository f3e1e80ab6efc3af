"""What we have: devices with their peaks and sources, clusters, links. Standard library only."""

from .cluster import Cluster
from .device import Device, unknown_device
from .device_table import find, recognise
from .link import Link

__all__ = [
    "Cluster",
    "Device",
    "Link",
    "find",
    "recognise",
    "unknown_device",
]
