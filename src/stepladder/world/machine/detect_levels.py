"""The memory hierarchy of this machine: its GPU, or its processor as Linux describes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from stepladder.hardware import Device
from stepladder.hardware.chips import KIB, MIB, MULTIPROCESSORS, Chip
from stepladder.hardware.memory_levels import MemoryLevel, memory_levels

from .machine import detect_machine

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": KIB, "M": MIB}


def detect_levels() -> tuple[Device, Chip | None, list[MemoryLevel]]:
    """This machine's device, its chip where it is a known one, and what holds its numbers."""
    machine = detect_machine()
    device, chip = machine.cluster.device, detect_chip()
    if not device.is_cpu:
        return device, chip, memory_levels(device, chip)
    host = MemoryLevel("host memory", machine.host_memory_bytes, None, "every core")
    return device, None, [*processor_caches(CACHES), host]


def detect_chip(index: int = 0) -> Chip | None:
    """The chip of a GPU as the driver tells it; None if its kind of multiprocessor is unknown."""
    if not torch.cuda.is_available() or torch.version.hip:
        return None
    facts = torch.cuda.get_device_properties(index)
    kind = MULTIPROCESSORS.get(f"{facts.major}.{facts.minor}")
    if kind is None:
        return None
    return Chip(
        multiprocessor=kind,
        multiprocessors=facts.multi_processor_count,
        cache_bytes=facts.L2_cache_size,
        source="the driver of this machine",
    )


def processor_caches(folder: Path) -> Iterator[MemoryLevel]:
    """Caches for data that the first core uses, nearest first; none where Linux does not tell."""
    for entry in sorted(folder.glob("index*")):
        described = {name: (entry / name).read_text().strip()
                for name in ("level", "type", "size", "shared_cpu_list")}  # fmt: skip
        number = re.fullmatch(r"(\d+)([KM]?)", described["size"])
        if described["type"] == "Instruction" or number is None:
            continue
        cores = described["shared_cpu_list"]
        reach = f"cores {cores}" if re.search(r"[-,]", cores) else "one core"
        size = int(number[1]) * UNITS.get(number[2], 1)
        yield MemoryLevel(f"L{described['level']} cache", size, None, reach)
