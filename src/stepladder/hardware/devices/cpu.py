"""Processors, each row one whole socket.

Peaks are arithmetic: cores × base clock × operations per cycle, written out in the source. A
virtual machine sees a slice of a socket under the socket's name, so a processor is never
recognised by its name; whoever has the whole socket may say so. Apple's rows are the whole chip,
and only what Apple has published.
"""

from __future__ import annotations

from stepladder.hardware.board import GIGABIT, Board
from stepladder.hardware.device import Device, tera
from stepladder.hardware.link import usual_link

_HOST = Board(
    usual_link("shared memory", 10e9),  # an estimate: one core copying to another process
    host_bytes_per_second=None,  # it is the host
    devices_per_node=8,
    network=usual_link("Ethernet", 10 * GIGABIT),
)

CPU = Device(
    name="CPU",
    vendor="any",
    board=_HOST,
    memory_bytes=None,
    bandwidth_bytes_per_second=None,
    peaks={},
    power_watts=None,
    source="any processor: its peak depends on cores, clock and what else runs, so it is unknown",
)


def _socket(
    name: str,
    vendor: str,
    *,
    bandwidth: float,
    peaks: dict[str, float],
    watts: float | None,
    source: str,
) -> Device:
    return Device(
        name=name,
        vendor=vendor,
        board=_HOST,
        memory_bytes=None,
        bandwidth_bytes_per_second=bandwidth,
        peaks=peaks,
        power_watts=watts,
        source=source,
    )


ROWS = (
    CPU,
    _socket(
        "Xeon-8380",
        "Intel",
        bandwidth=204.8e9,
        peaks=tera(fp64=2.944, fp32=5.888),
        watts=270,
        source="Intel ARK Xeon Platinum 8380, 2021: 40 cores × 2.3 GHz × 64 fp32 (AVX-512)",
    ),
    _socket(
        "Xeon-8480",
        "Intel",
        bandwidth=307.2e9,
        peaks=tera(fp64=3.584, fp32=7.168, bf16=114.688, int8=229.376),
        watts=350,
        source="Intel ARK Xeon Platinum 8480+, 2023: 56 cores × 2.0 GHz × 1024 bf16 (AMX), 64 fp32",
    ),
    _socket(
        "EPYC-7763",
        "AMD",
        bandwidth=204.8e9,
        peaks=tera(fp64=2.5088, fp32=5.0176),
        watts=280,
        source="AMD EPYC 7763 product page, 2021: 64 cores × 2.45 GHz × 32 fp32 (AVX2)",
    ),
    _socket(
        "EPYC-9654",
        "AMD",
        bandwidth=460.8e9,
        peaks=tera(fp64=3.6864, fp32=7.3728, bf16=14.7456),
        watts=360,
        source="AMD EPYC 9654 product page, 2022: 96 cores × 2.4 GHz × 32 fp32, 64 bf16",
    ),
    _socket(
        "Apple-M1-Max",
        "Apple",
        bandwidth=400e9,
        peaks=tera(fp32=10.4),
        watts=None,
        source="Apple M1 Pro and Max newsroom, 2021: 32-core GPU",
    ),
    _socket(
        "Apple-M2",
        "Apple",
        bandwidth=100e9,
        peaks=tera(fp32=3.6),
        watts=None,
        source="Apple M2 newsroom, 2022: 10-core GPU",
    ),
    _socket(
        "Apple-M4-Max",
        "Apple",
        bandwidth=546e9,
        peaks={},
        watts=None,
        source="Apple M4 Max newsroom, 2024: 40-core GPU; no peak is published",
    ),
)
