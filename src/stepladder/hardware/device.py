"""A device, as the numbers that a forecast needs: memory, bandwidth, peak FLOP/s, power, price.

[Note: which peak] A peak is dense, never the "with sparsity" figure, and counts a multiply-add as
two. `tf32`, `bf16`, `fp16`, `fp8` and `int8` are the matrix units' with 32-bit accumulation;
`fp32` and `fp64` are the plain vector units', since that is what a float32 matmul gets when tf32
is off. A type that is absent cannot be run there at speed, or nobody has published its number:
unknown is a value and nothing is guessed.

[Note: which memory] HBM is sold in GB and built in GiB, so "80 GB" is 80 × 2^30. Boards with GDDR
and error correction on by default keep a sixteenth for the check bits (a 24 GB L4 shows 22.5 GiB).
A processor has no memory of its own: `memory_bytes` is None and the cluster's host memory counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepladder.errors import PlanError, nearest

from .board import Board
from .link import Link

COMPUTE_TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as its vendor states it: memory, bandwidth, peaks by type, power, price."""

    name: str
    vendor: str
    board: Board  # where it usually sits
    memory_bytes: int | None  # See [Note: which memory]
    bandwidth_bytes_per_second: float | None  # of its own memory
    peaks: Mapping[str, float] = field(hash=False)  # FLOP/s by compute type, [Note: which peak]
    power_watts: float | None  # board power limit
    source: str
    dollars_per_hour: float | None = None  # of renting one on demand
    price_source: str = ""

    def peak(self, compute: str) -> float | None:
        """Say how many operations a second it can do in that type; None if unable or unknown."""
        if compute not in COMPUTE_TYPES:
            remedy = nearest(compute, COMPUTE_TYPES)
            raise PlanError("compute", f"'{compute}' is not a compute type", remedy)
        return self.peaks.get(compute)

    @property
    def link(self) -> Link:
        """Its usual link to the other devices of its node."""
        return self.board.link

    @property
    def network(self) -> Link:
        """The usual link of its node to other nodes."""
        return self.board.network

    @property
    def host_bytes_per_second(self) -> float | None:
        return self.board.host_bytes_per_second

    @property
    def devices_per_node(self) -> int:
        return self.board.devices_per_node

    @property
    def is_cpu(self) -> bool:
        """Whether it works out of the host's own memory."""
        return self.memory_bytes is None

    def __str__(self) -> str:
        return self.name


def tera(**by_type: float) -> dict[str, float]:
    """Write peaks as datasheets do, in TFLOP/s."""
    return {compute: float(round(figure * 1e12)) for compute, figure in by_type.items()}


def hbm(gigabytes: int) -> int:
    return gigabytes * GIB


def gddr_with_ecc(gigabytes: int) -> int:
    return gigabytes * GIB * 15 // 16


def unknown_device(name: str, vendor: str, memory_bytes: int | None, board: Board) -> Device:
    """Make a device of which only its name, its memory and a likely board are known."""
    return Device(
        name=name,
        vendor=vendor,
        board=board,
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_second=None,
        peaks={},
        power_watts=None,
        source="read off this machine; not in the device table",
    )
