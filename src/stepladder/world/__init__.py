"""Where we are: the machine, the processes, the moment."""

from .device import pick_device, synchronize
from .memory import held_bytes, limit_bytes, peak_bytes, reset_peak
from .place import Place
from .seed import deterministic, moment_seed, seed_moment
from .signals import Stop
from .world import World, join

__all__ = [
    "Place",
    "Stop",
    "World",
    "deterministic",
    "held_bytes",
    "join",
    "limit_bytes",
    "moment_seed",
    "peak_bytes",
    "pick_device",
    "reset_peak",
    "seed_moment",
    "synchronize",
]
