"""NVIDIA's data-centre devices from Ada and Hopper on.

Figures are dense, see [Note: which peak] in device.py; since Hopper the datasheets print sparse
ones, twice as high.
"""

from __future__ import annotations

from stepladder.hardware.board import PCIE4, PCIE5, nvlink, pcie_cards
from stepladder.hardware.device import Device, gddr_with_ecc, hbm, tera

_HGX_HOPPER = nvlink(900e9, PCIE5, 8, network_gigabits=3200)
_HGX_H800 = nvlink(400e9, PCIE5, 8, network_gigabits=3200)
_HGX_BLACKWELL = nvlink(1800e9, PCIE5, 8, network_gigabits=3200)
_HGX_ULTRA = nvlink(1800e9, PCIE5, 8, network_gigabits=6400)
_GRACE = nvlink(900e9, 450e9, 1, network_gigabits=400)  # the host is reached over NVLink-C2C
_NVL72 = nvlink(1800e9, 450e9, 72, network_gigabits=72 * 400)  # a rack is one NVLink domain
_NVL72_ULTRA = nvlink(1800e9, 450e9, 72, network_gigabits=72 * 800)
_SERVER4 = pcie_cards(PCIE4, 8, network_gigabits=100)
_SERVER5 = pcie_cards(PCIE5, 8, network_gigabits=400)

ROWS = (
    Device(
        name="L4",
        vendor="NVIDIA",
        board=_SERVER4,
        memory_bytes=gddr_with_ecc(24),
        bandwidth_bytes_per_second=300e9,
        peaks=tera(fp32=30.3, tf32=60, bf16=121, fp16=121, fp8=242.5, int8=242.5),
        power_watts=72,
        source="NVIDIA L4 datasheet, 2023: half of its sparse figures",
    ),
    Device(
        name="L40",
        vendor="NVIDIA",
        board=_SERVER4,
        memory_bytes=gddr_with_ecc(48),
        bandwidth_bytes_per_second=864e9,
        peaks=tera(fp32=90.5, tf32=90.5, bf16=181.05, fp16=181.05, fp8=362, int8=362),
        power_watts=300,
        source="NVIDIA L40 datasheet, 2022",
    ),
    Device(
        name="L40S",
        vendor="NVIDIA",
        board=_SERVER4,
        memory_bytes=gddr_with_ecc(48),
        bandwidth_bytes_per_second=864e9,
        peaks=tera(fp32=91.6, tf32=183, bf16=362.05, fp16=362.05, fp8=733, int8=733),
        power_watts=350,
        source="NVIDIA L40S datasheet, 2023",
    ),
    Device(
        name="H100-80GB",
        vendor="NVIDIA",
        board=_HGX_HOPPER,
        memory_bytes=hbm(80),
        bandwidth_bytes_per_second=3352e9,
        peaks=tera(
            fp64=33.5, fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, int8=1978.9
        ),
        power_watts=700,
        source="NVIDIA H100 whitepaper, 2022: SXM5",
    ),
    Device(
        name="H100-96GB",
        vendor="NVIDIA",
        board=_HGX_HOPPER,
        memory_bytes=hbm(96),
        bandwidth_bytes_per_second=2.4e12,
        peaks=tera(
            fp64=33.5, fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, int8=1978.9
        ),
        power_watts=500,
        source="torchtitan docs/performance.md, 2024: HBM2e, 500 W. Peaks are the SXM5's, an upper "
        "bound: at its power limit the clocks are lower, and its makers published no figure",
    ),
    Device(
        name="H100-PCIe",
        vendor="NVIDIA",
        board=_SERVER5,
        memory_bytes=hbm(80),
        bandwidth_bytes_per_second=2039e9,
        peaks=tera(fp64=25.6, fp32=51.2, tf32=378, bf16=756, fp16=756, fp8=1513, int8=1513),
        power_watts=350,
        source="NVIDIA H100 whitepaper, 2022: PCIe",
    ),
    Device(
        name="H100-NVL",
        vendor="NVIDIA",
        board=_SERVER5,
        memory_bytes=hbm(94),
        bandwidth_bytes_per_second=3938e9,
        peaks=tera(fp64=30, fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5, int8=1670.5),
        power_watts=400,
        source="NVIDIA H100 NVL datasheet, 2024: half of its sparse figures",
    ),
    Device(
        name="H800",
        vendor="NVIDIA",
        board=_HGX_H800,
        memory_bytes=hbm(80),
        bandwidth_bytes_per_second=3352e9,
        peaks=tera(fp64=1, fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, int8=1978.9),
        power_watts=700,
        source="NVIDIA H800 datasheet, 2023: an H100 SXM5 with NVLink at 400 GB/s and little fp64",
    ),
    Device(
        name="H20",
        vendor="NVIDIA",
        board=_HGX_HOPPER,
        memory_bytes=hbm(96),
        bandwidth_bytes_per_second=4.0e12,
        peaks=tera(fp64=1, fp32=44, tf32=74, bf16=148, fp16=148, fp8=296, int8=296),
        power_watts=400,
        source="NVIDIA H20 datasheet, 2024",
    ),
    Device(
        name="H200",
        vendor="NVIDIA",
        board=_HGX_HOPPER,
        memory_bytes=hbm(141),
        bandwidth_bytes_per_second=4.8e12,
        peaks=tera(
            fp64=33.5, fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, int8=1978.9
        ),
        power_watts=700,
        source="NVIDIA H200 datasheet, 2024: SXM5, half of its sparse figures",
    ),
    Device(
        name="H200-NVL",
        vendor="NVIDIA",
        board=_SERVER5,
        memory_bytes=hbm(141),
        bandwidth_bytes_per_second=4.8e12,
        peaks=tera(fp64=30, fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5, int8=1670.5),
        power_watts=600,
        source="NVIDIA H200 NVL datasheet, 2024: half of its sparse figures",
    ),
    Device(
        name="GH200",
        vendor="NVIDIA",
        board=_GRACE,
        memory_bytes=hbm(96),
        bandwidth_bytes_per_second=4.0e12,
        peaks=tera(
            fp64=33.5, fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, int8=1978.9
        ),
        power_watts=700,
        source="NVIDIA GH200 datasheet, 2024: HBM3 version; watts of the GPU alone",
    ),
    Device(
        name="B100",
        vendor="NVIDIA",
        board=_HGX_BLACKWELL,
        memory_bytes=hbm(180),
        bandwidth_bytes_per_second=8e12,
        peaks=tera(fp64=30, fp32=60, tf32=875, bf16=1750, fp16=1750, fp8=3500, int8=3500),
        power_watts=700,
        source="NVIDIA Blackwell architecture brief, 2024",
    ),
    Device(
        name="B200",
        vendor="NVIDIA",
        board=_HGX_BLACKWELL,
        memory_bytes=hbm(180),
        bandwidth_bytes_per_second=8e12,
        peaks=tera(fp64=37, fp32=75, tf32=1125, bf16=2250, fp16=2250, fp8=4500, int8=4500),
        power_watts=1000,
        source="NVIDIA HGX B200 datasheet, 2025: an eighth of a board, half of the sparse figures",
    ),
    Device(
        name="GB200",
        vendor="NVIDIA",
        board=_NVL72,
        memory_bytes=hbm(186),
        bandwidth_bytes_per_second=8e12,
        peaks=tera(fp64=40, fp32=80, tf32=1250, bf16=2500, fp16=2500, fp8=5000, int8=5000),
        power_watts=1200,
        source="NVIDIA GB200 NVL72 datasheet, 2025: a 72nd of the rack, half of its sparse figures",
    ),
    Device(
        name="GB300",
        vendor="NVIDIA",
        board=_NVL72_ULTRA,
        memory_bytes=hbm(277),
        bandwidth_bytes_per_second=8e12,
        peaks=tera(fp64=1.4, fp32=80, tf32=1250, bf16=2500, fp16=2500, fp8=5000),
        power_watts=1400,
        source="NVIDIA GB300 NVL72 datasheet, 2025: a 72nd of a rack, half of sparse figures; "
        "memory as the driver shows it",
    ),
    Device(
        name="B300",
        vendor="NVIDIA",
        board=_HGX_ULTRA,
        memory_bytes=hbm(268),
        bandwidth_bytes_per_second=8e12,
        peaks=tera(fp64=1.25, fp32=75, tf32=1125, bf16=2250, fp16=2250, fp8=4500),
        power_watts=1100,
        source="NVIDIA HGX B300 datasheet, 2025: an eighth of a board, half of the sparse figures; "
        "memory as the driver shows it",
    ),
)
