"""NVIDIA's data-centre devices before Hopper: Pascal, Volta, Turing, Ampere.

Figures are dense, see [Note: which peak] in device.py; the sources' asterisked ones are not.
"""

from __future__ import annotations

from stepladder.hardware.board import PCIE3, PCIE4, nvlink, pcie_cards
from stepladder.hardware.device import Device, gddr_with_ecc, hbm, tera

_DGX1_PASCAL = nvlink(160e9, PCIE3, 8, network_gigabits=400)
_DGX1_VOLTA = nvlink(300e9, PCIE3, 8, network_gigabits=400)
_DGX_A100 = nvlink(600e9, PCIE4, 8, network_gigabits=1600)
_HGX_A800 = nvlink(400e9, PCIE4, 8, network_gigabits=1600)
_SERVER3 = pcie_cards(PCIE3, 8, network_gigabits=100)
_SERVER4 = pcie_cards(PCIE4, 8, network_gigabits=100)

ROWS = (
    Device(
        name="P100",
        vendor="NVIDIA",
        board=_DGX1_PASCAL,
        memory_bytes=hbm(16),
        bandwidth_bytes_per_second=732e9,
        peaks=tera(fp64=5.3, fp32=10.6, fp16=21.2),
        power_watts=300,
        source="NVIDIA Tesla P100 whitepaper, 2016: SXM2; fp16 on the vector units",
    ),
    Device(
        name="P100-PCIe",
        vendor="NVIDIA",
        board=_SERVER3,
        memory_bytes=hbm(16),
        bandwidth_bytes_per_second=732e9,
        peaks=tera(fp64=4.7, fp32=9.3, fp16=18.7),
        power_watts=250,
        source="NVIDIA Tesla P100 PCIe datasheet, 2016; fp16 on the vector units",
    ),
    Device(
        name="V100-16GB",
        vendor="NVIDIA",
        board=_DGX1_VOLTA,
        memory_bytes=hbm(16),
        bandwidth_bytes_per_second=900e9,
        peaks=tera(fp64=7.8, fp32=15.7, fp16=125),
        power_watts=300,
        source="NVIDIA Tesla V100 datasheet, 2020: SXM2",
    ),
    Device(
        name="V100-32GB",
        vendor="NVIDIA",
        board=_DGX1_VOLTA,
        memory_bytes=hbm(32),
        bandwidth_bytes_per_second=900e9,
        peaks=tera(fp64=7.8, fp32=15.7, fp16=125),
        power_watts=300,
        source="NVIDIA Tesla V100 datasheet, 2020: SXM2",
    ),
    Device(
        name="V100-PCIe-16GB",
        vendor="NVIDIA",
        board=_SERVER3,
        memory_bytes=hbm(16),
        bandwidth_bytes_per_second=900e9,
        peaks=tera(fp64=7, fp32=14, fp16=112),
        power_watts=250,
        source="NVIDIA Tesla V100 datasheet, 2020: PCIe",
    ),
    Device(
        name="V100-PCIe-32GB",
        vendor="NVIDIA",
        board=_SERVER3,
        memory_bytes=hbm(32),
        bandwidth_bytes_per_second=900e9,
        peaks=tera(fp64=7, fp32=14, fp16=112),
        power_watts=250,
        source="NVIDIA Tesla V100 datasheet, 2020: PCIe",
    ),
    Device(
        name="T4",
        vendor="NVIDIA",
        board=_SERVER3,
        memory_bytes=gddr_with_ecc(16),
        bandwidth_bytes_per_second=320e9,
        peaks=tera(fp32=8.1, fp16=65, int8=130),
        power_watts=70,
        source="NVIDIA T4 datasheet, 2019",
    ),
    Device(
        name="A10",
        vendor="NVIDIA",
        board=_SERVER4,
        memory_bytes=gddr_with_ecc(24),
        bandwidth_bytes_per_second=600e9,
        peaks=tera(fp32=31.2, tf32=62.5, bf16=125, fp16=125, int8=250),
        power_watts=150,
        source="NVIDIA A10 datasheet, 2021",
    ),
    Device(
        name="A10G",
        vendor="NVIDIA",
        board=_SERVER4,
        memory_bytes=gddr_with_ecc(24),
        bandwidth_bytes_per_second=600e9,
        peaks=tera(fp32=35, tf32=35, bf16=70, fp16=70, int8=140),
        power_watts=300,
        source="NVIDIA A10G datasheet for AWS G5, 2021",
    ),
    Device(
        name="A30",
        vendor="NVIDIA",
        board=_SERVER4,
        memory_bytes=hbm(24),
        bandwidth_bytes_per_second=933e9,
        peaks=tera(fp64=5.2, fp32=10.3, tf32=82, bf16=165, fp16=165, int8=330),
        power_watts=165,
        source="NVIDIA A30 datasheet, 2021",
    ),
    Device(
        name="A40",
        vendor="NVIDIA",
        board=_SERVER4,
        memory_bytes=gddr_with_ecc(48),
        bandwidth_bytes_per_second=696e9,
        peaks=tera(fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7, int8=299.3),
        power_watts=300,
        source="NVIDIA A40 datasheet, 2020",
    ),
    Device(
        name="A100-40GB",
        vendor="NVIDIA",
        board=_DGX_A100,
        memory_bytes=hbm(40),
        bandwidth_bytes_per_second=1555e9,
        peaks=tera(fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624),
        power_watts=400,
        source="NVIDIA A100 datasheet, 2021: SXM4",
    ),
    Device(
        name="A100-80GB",
        vendor="NVIDIA",
        board=_DGX_A100,
        memory_bytes=hbm(80),
        bandwidth_bytes_per_second=2039e9,
        peaks=tera(fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624),
        power_watts=400,
        source="NVIDIA A100 datasheet, 2021: SXM4",
    ),
    Device(
        name="A100-40GB-PCIe",
        vendor="NVIDIA",
        board=_SERVER4,
        memory_bytes=hbm(40),
        bandwidth_bytes_per_second=1555e9,
        peaks=tera(fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624),
        power_watts=250,
        source="NVIDIA A100 datasheet, 2021: PCIe",
    ),
    Device(
        name="A100-80GB-PCIe",
        vendor="NVIDIA",
        board=_SERVER4,
        memory_bytes=hbm(80),
        bandwidth_bytes_per_second=1935e9,
        peaks=tera(fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624),
        power_watts=300,
        source="NVIDIA A100 datasheet, 2021: PCIe",
    ),
    Device(
        name="A800",
        vendor="NVIDIA",
        board=_HGX_A800,
        memory_bytes=hbm(80),
        bandwidth_bytes_per_second=2039e9,
        peaks=tera(fp64=9.7, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624),
        power_watts=400,
        source="NVIDIA A800 datasheet, 2022: an A100-80GB SXM4 with NVLink at 400 GB/s",
    ),
)
