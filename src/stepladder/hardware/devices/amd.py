"""AMD's Instinct devices.

An MI250X is two dies and torch shows each as a device of its own, so its row is one die.
"""

from __future__ import annotations

from stepladder.hardware.board import PCIE4, PCIE5, infinity_fabric, pcie_cards
from stepladder.hardware.device import Device, hbm, tera

_FRONTIER = infinity_fabric(
    200e9, 36e9, 8, network_gigabits=800
)  # a die's slowest links to its peers
_UBB3 = infinity_fabric(896e9, PCIE5, 8, network_gigabits=3200)
_UBB4 = infinity_fabric(1075e9, PCIE5, 8, network_gigabits=3200)
_SERVER = pcie_cards(PCIE4, 8, network_gigabits=100)

ROWS = (
    Device(
        name="MI210",
        vendor="AMD",
        board=_SERVER,
        memory_bytes=hbm(64),
        bandwidth_bytes_per_second=1638.4e9,
        peaks=tera(fp64=22.6, fp32=22.6, bf16=181, fp16=181, int8=181),
        power_watts=300,
        source="AMD Instinct MI210 datasheet, 2022",
    ),
    Device(
        name="MI250X",
        vendor="AMD",
        board=_FRONTIER,
        memory_bytes=hbm(64),
        bandwidth_bytes_per_second=1638.4e9,
        peaks=tera(fp64=23.95, fp32=23.95, bf16=191.5, fp16=191.5, int8=191.5),
        power_watts=280,
        source="AMD Instinct MI250X datasheet, 2021: half of the two-die module",
    ),
    Device(
        name="MI300X",
        vendor="AMD",
        board=_UBB3,
        memory_bytes=hbm(192),
        bandwidth_bytes_per_second=5325e9,
        peaks=tera(
            fp64=81.7, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9, int8=2614.9
        ),
        power_watts=750,
        source="AMD Instinct MI300X datasheet, 2023",
    ),
    Device(
        name="MI325X",
        vendor="AMD",
        board=_UBB3,
        memory_bytes=hbm(256),
        bandwidth_bytes_per_second=6000e9,
        peaks=tera(
            fp64=81.7, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9, int8=2614.9
        ),
        power_watts=1000,
        source="AMD Instinct MI325X datasheet, 2024",
    ),
    Device(
        name="MI350X",
        vendor="AMD",
        board=_UBB4,
        memory_bytes=hbm(288),
        bandwidth_bytes_per_second=8000e9,
        peaks=tera(fp64=72.1, fp32=144.2, bf16=2306.9, fp16=2306.9, fp8=4613.7, int8=4613.7),
        power_watts=1000,
        source="AMD Instinct MI350X datasheet, 2025",
    ),
    Device(
        name="MI355X",
        vendor="AMD",
        board=_UBB4,
        memory_bytes=hbm(288),
        bandwidth_bytes_per_second=8000e9,
        peaks=tera(fp64=78.6, fp32=157.3, bf16=2516.6, fp16=2516.6, fp8=5033.2, int8=5033.2),
        power_watts=1400,
        source="AMD Instinct MI355X datasheet, 2025",
    ),
)
