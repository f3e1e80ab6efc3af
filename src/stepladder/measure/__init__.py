"""Where memory, time and network bytes go, measured."""

from .leaks import measure_fragmentation
from .memory_by_owner import MemoryMeter, measure_memory
from .memory_timeline import MemoryTimeline, record_timeline
from .network_bytes import sent_since, wire_bytes
from .slow_link import Cable
from .training_state import held_state

__all__ = [
    "Cable",
    "MemoryMeter",
    "MemoryTimeline",
    "held_state",
    "measure_fragmentation",
    "measure_memory",
    "record_timeline",
    "sent_since",
    "wire_bytes",
]
