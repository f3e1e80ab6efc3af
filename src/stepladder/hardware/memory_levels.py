"""The memory hierarchy of a device, nearest first: how large each level is, and how fast.

Rates are those of the whole device in one direction. Registers and the L2 cache have no rate here,
since no vendor states one; that of shared memory follows from its banks and the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from .chips import BANKS_BYTES, Chip
from .device import Device


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """One level: its size on the whole device, and the rate at which the device reads it."""

    name: str
    bytes: int | None
    bytes_per_second: float | None
    reach: str  # who can read it

    def balance(self, device: Device) -> float | None:
        """16-bit FLOPs on each byte from here that keep the device's arithmetic busy."""
        peak, rate = device.peak("bf16") or device.peak("fp16"), self.bytes_per_second
        return peak / rate if peak and rate else None


def memory_levels(device: Device, chip: Chip | None) -> list[MemoryLevel]:
    """Every level from registers to the network; without a chip, from the device's own memory on.

    >>> from stepladder.hardware import find_device
    >>> from stepladder.hardware.chips import find_chip
    >>> h100 = find_device("H100-80GB")
    >>> [level.name for level in memory_levels(h100, find_chip(h100))][:3]
    ['registers', 'shared memory and L1', 'L2 cache']
    """
    levels = on_chip(device, chip) if chip else []
    own = device.memory_bytes
    levels.append(MemoryLevel("device memory", own, device.bandwidth_bytes_per_second,
                              "the whole device"))  # fmt: skip
    others = device.devices_per_node - 1
    if others:
        size = own * others if own else None
        levels.append(MemoryLevel(f"{others} other devices, {device.link.kind}", size,
                                  device.link.bytes_per_second, "a node"))  # fmt: skip
    levels.append(MemoryLevel("host memory", None, device.host_bytes_per_second, "a node"))
    share = device.network.bytes_per_second / device.devices_per_node
    levels.append(MemoryLevel(f"other nodes, {device.network.kind}, a device's share", None,
                              share, "every node"))  # fmt: skip
    return levels


def on_chip(device: Device, chip: Chip) -> list[MemoryLevel]:
    each, count, clock = chip.multiprocessor, chip.multiprocessors, chip.clock(device)
    banks = None if clock is None else BANKS_BYTES * count * clock
    return [
        MemoryLevel("registers", 4 * each.registers * count, None, "one thread"),
        MemoryLevel("shared memory and L1", each.fast_bytes * count, banks, "one block"),
        MemoryLevel("L2 cache", chip.cache_bytes, None, "the whole device"),
    ]
