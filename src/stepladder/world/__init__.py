"""The distributed world: this machine, the ranks of the run, random seeds and stop signals."""

from .launcher_environment import Place
from .machine.device import pick_device, synchronize
from .machine.machine import detect_cluster, detect_machine
from .machine.machine_checks import MachineCheck
from .machine.process_memory import device_memory_bytes, peak_memory_bytes
from .seed import deterministic, seed_generators
from .stop_signals import StopSignals, signal_exit_code
from .world import World, join_world

__all__ = [
    "MachineCheck",
    "Place",
    "StopSignals",
    "World",
    "detect_cluster",
    "detect_machine",
    "deterministic",
    "device_memory_bytes",
    "join_world",
    "peak_memory_bytes",
    "pick_device",
    "seed_generators",
    "signal_exit_code",
    "synchronize",
]
