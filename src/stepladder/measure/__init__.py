"""Measurements of a run: memory by owner, leaks, stragglers, bytes between ranks."""

from .collective_traffic import Traffic
from .leaks import measure_fragmentation
from .memory_by_owner import MemoryMeter, measure_memory
from .memory_timeline import MemoryTimeline, record_timeline
from .network_bytes import sent_since, wire_bytes
from .slow_link import SlowLink
from .training_state import measure_state

__all__ = [
    "MemoryMeter",
    "MemoryTimeline",
    "SlowLink",
    "Traffic",
    "measure_fragmentation",
    "measure_memory",
    "measure_state",
    "record_timeline",
    "sent_since",
    "wire_bytes",
]
