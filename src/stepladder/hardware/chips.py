"""Chips: what the multiprocessors of a GPU have, and how many there are.

A kernel runs as *blocks* of threads. A block stays on one multiprocessor (SM), which has room for
several of them and computes for 32 threads, a *warp*, at a time. The room is registers, shared
memory, and a largest number of warps and of blocks: `occupancy` divides it.

Limits of a multiprocessor are those of its compute capability. Sizes are bytes and powers of two.
The clock is not stated: it follows from the peak of the device table, which is this many
operations a clock on every multiprocessor. Chips that are not here are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .device import Device

KIB, MIB = 2**10, 2**20
WARP = 32  # threads
BANKS_BYTES = 32 * 4  # that shared memory gives in a clock: 32 banks, 4 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessor:
    """What one streaming multiprocessor has room for.

    >>> HOPPER.warps * WARP, HOPPER.shared_bytes // KIB
    (2048, 228)
    """

    capability: str  # compute capability, as torch and nvcc write it
    warps: int  # at most, of all blocks together
    blocks: int  # at most
    registers: int  # of 32 bits
    fast_bytes: int  # shared memory and L1 cache together
    shared_bytes: int  # of which shared memory, at most
    shared_block_bytes: int  # of which one block, at most
    cores: int  # CUDA cores: each multiplies and adds two fp32 numbers a clock
    matrix_units: int  # tensor cores
    matrix_flops: int  # 16-bit operations a clock of its matrix units, dense


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """The multiprocessors and the cache of one GPU."""

    multiprocessor: Multiprocessor
    multiprocessors: int
    cache_bytes: int  # L2, which all of them share
    source: str

    def clock(self, device: Device) -> float | None:
        """Clocks a second at which the device's stated 16-bit peak is reached."""
        peak = device.peak("bf16")
        each = self.multiprocessor.matrix_flops * self.multiprocessors
        return None if peak is None else peak / each

    @property
    def cores(self) -> int:
        return self.multiprocessors * self.multiprocessor.cores

    @property
    def matrix_units(self) -> int:
        return self.multiprocessors * self.multiprocessor.matrix_units

    @property
    def threads(self) -> int:
        """How many threads all its multiprocessors keep at once."""
        return self.multiprocessors * self.multiprocessor.warps * WARP


AMPERE = Multiprocessor(
    capability="8.0",
    warps=64,
    blocks=32,
    registers=65536,
    fast_bytes=192 * KIB,
    shared_bytes=164 * KIB,
    shared_block_bytes=163 * KIB,
    cores=64,
    matrix_units=4,
    matrix_flops=2048,
)
HOPPER = Multiprocessor(
    capability="9.0",
    warps=64,
    blocks=32,
    registers=65536,
    fast_bytes=256 * KIB,
    shared_bytes=228 * KIB,
    shared_block_bytes=227 * KIB,
    cores=128,
    matrix_units=4,
    matrix_flops=4096,
)
BLACKWELL = replace(HOPPER, capability="10.0", matrix_flops=8192)
MULTIPROCESSORS = {each.capability: each for each in (AMPERE, HOPPER, BLACKWELL)}

_A100 = Chip(
    multiprocessor=AMPERE,
    multiprocessors=108,
    cache_bytes=40 * MIB,
    source="NVIDIA A100 whitepaper, 2020; CUDA programming guide, compute capability 8.0",
)
_H100 = Chip(
    multiprocessor=HOPPER,
    multiprocessors=132,
    cache_bytes=50 * MIB,
    source="NVIDIA H100 whitepaper, 2022: SXM5; CUDA programming guide, compute capability 9.0",
)
_H200 = Chip(
    multiprocessor=HOPPER,
    multiprocessors=132,
    cache_bytes=60 * MIB,
    source="torch on an H200, 2026; CUDA programming guide, compute capability 9.0",
)
_B200 = Chip(
    multiprocessor=BLACKWELL,
    multiprocessors=148,
    cache_bytes=126 * MIB + MIB // 2,
    source="the driver on a B200, as pytorch/ao#4002 prints it, 2026; CUDA programming guide, "
    "compute capability 10.0",
)
CHIPS = {
    "A100-40GB": _A100,
    "A100-80GB": _A100,
    "H100-80GB": _H100,
    "H200": _H200,
    "B200": _B200,
}


def find_chip(device: Device) -> Chip | None:
    """The chip of a device of the table; None where nobody has entered it.

    >>> from stepladder.hardware import find_device
    >>> find_chip(find_device("A100-80GB")).multiprocessors
    108
    """
    return CHIPS.get(device.name)
