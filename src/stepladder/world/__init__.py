"""Where we are: the machine, the processes, the moment."""

from .launcher_environment import Place
from .machine.device import pick_device, synchronize
from .machine.machine import detect, detect_cluster
from .machine.machine_checks import Check
from .machine.process_memory import limit_bytes, peak_bytes
from .seed import deterministic, seed_moment
from .stop_signals import Stop, stop_code
from .world import World, join

__all__ = [
    "Check",
    "Place",
    "Stop",
    "World",
    "detect",
    "detect_cluster",
    "deterministic",
    "join",
    "limit_bytes",
    "peak_bytes",
    "pick_device",
    "seed_moment",
    "stop_code",
    "synchronize",
]
