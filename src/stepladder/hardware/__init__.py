"""What we have: devices with their peaks and sources, clusters, links. Standard library only."""

from .board import Board
from .cluster import Cluster
from .device import COMPUTE_TYPES, Device, unknown_device
from .link import KINDS, Kind, Link, usual
from .table import DEVICES, find, recognise

__all__ = [
    "COMPUTE_TYPES",
    "DEVICES",
    "KINDS",
    "Board",
    "Cluster",
    "Device",
    "Kind",
    "Link",
    "find",
    "recognise",
    "unknown_device",
    "usual",
]
