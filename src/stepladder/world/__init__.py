"""Where we are: the machine, the processes, the moment."""

from .agreement import StopVote
from .alone import with_mesh
from .board import Board
from .checks import CHECKS, FAILED, Check, try_check
from .device import pick_device, synchronize
from .machine import Machine, detect, detect_cluster
from .memory import held_bytes, limit_bytes, peak_bytes, reset_peak
from .place import Place
from .placement import explain_placement
from .seed import deterministic, moment_seed, seed_moment
from .signals import Stop, stop_code
from .support import Support, support
from .waiting import Waiting
from .world import World, gather, join

__all__ = [
    "CHECKS",
    "FAILED",
    "Board",
    "Check",
    "Machine",
    "Place",
    "Stop",
    "StopVote",
    "Support",
    "Waiting",
    "World",
    "detect",
    "detect_cluster",
    "deterministic",
    "explain_placement",
    "gather",
    "held_bytes",
    "join",
    "limit_bytes",
    "moment_seed",
    "peak_bytes",
    "pick_device",
    "reset_peak",
    "seed_moment",
    "stop_code",
    "support",
    "synchronize",
    "try_check",
    "with_mesh",
]
