"""NVIDIA's workstation and consumer devices.

Consumer cards multiply 16-bit types at half rate when they accumulate in 32 bits, and training
does: the half rate is the peak here.
"""

from __future__ import annotations

from stepladder.hardware.board import PCIE4, PCIE5, pcie_cards
from stepladder.hardware.device import GIB, Device, tera

# A desk holds two or four, a rack's node eight: up to eight are taken for one machine.
_DESK4 = pcie_cards(PCIE4, 8, network_gigabits=10)
_DESK5 = pcie_cards(PCIE5, 8, network_gigabits=10)
_STATION = pcie_cards(PCIE4, 8, network_gigabits=100)

ROWS = (
    Device(
        name="RTX3090",
        vendor="NVIDIA",
        board=_DESK4,
        memory_bytes=24 * GIB,
        bandwidth_bytes_per_second=936e9,
        peaks=tera(fp32=35.6, tf32=35.6, bf16=71.2, fp16=71.2, int8=284.7),
        power_watts=350,
        source="NVIDIA Ampere GA102 whitepaper, 2020",
    ),
    Device(
        name="RTX4090",
        vendor="NVIDIA",
        board=_DESK4,
        memory_bytes=24 * GIB,
        bandwidth_bytes_per_second=1008e9,
        peaks=tera(fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3, int8=660.6),
        power_watts=450,
        source="NVIDIA Ada whitepaper, 2022",
    ),
    Device(
        name="RTX5090",
        vendor="NVIDIA",
        board=_DESK5,
        memory_bytes=32 * GIB,
        bandwidth_bytes_per_second=1792e9,
        peaks=tera(fp32=104.8, tf32=104.8, bf16=209.5, fp16=209.5, fp8=419, int8=838),
        power_watts=575,
        source="NVIDIA RTX Blackwell whitepaper, 2025",
    ),
    Device(
        name="A6000",
        vendor="NVIDIA",
        board=_STATION,
        memory_bytes=48 * GIB,
        bandwidth_bytes_per_second=768e9,
        peaks=tera(fp32=38.7, tf32=77.4, bf16=154.8, fp16=154.8, int8=309.7),
        power_watts=300,
        source="NVIDIA RTX A6000 datasheet, 2020, and the GA102 whitepaper",
    ),
    Device(
        name="RTX6000-Ada",
        vendor="NVIDIA",
        board=_STATION,
        memory_bytes=48 * GIB,
        bandwidth_bytes_per_second=960e9,
        peaks=tera(fp32=91.1, tf32=182.1, bf16=364.2, fp16=364.2, fp8=728.5, int8=728.5),
        power_watts=300,
        source="NVIDIA Ada professional whitepaper, 2023",
    ),
)
