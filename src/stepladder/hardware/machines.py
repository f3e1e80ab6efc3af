"""Machines named as a whole: cloud instance types, and NVIDIA's DGX and HGX.

Networks are those of the machine, one direction, as its seller states them; where a row has none,
the device's usual one is assumed, and said. A DGX or HGX of a device is a node of eight.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .board import GIGABIT
from .device import Device
from .device_table import find_device, is_known_device
from .link import Link, usual_link


@dataclass(frozen=True, slots=True)
class Machine:
    device: Device
    num_devices: int
    network: Link | None = None  # None: the device's usual one


# Device, how many, kind of network and its Gb/s. Sellers' pages of 2024-25; entered without them at
# hand, as the device table's rows were: look before you rely on one.
_RENTED = {
    "gb200 nvl72": ("GB200", 72, "InfiniBand", 28800),
    # Amazon
    "p3.2xlarge": ("V100-16GB", 1, "Ethernet", 10),
    "p3.8xlarge": ("V100-16GB", 4, "Ethernet", 10),
    "p3.16xlarge": ("V100-16GB", 8, "Ethernet", 25),
    "p3dn.24xlarge": ("V100-32GB", 8, "EFA", 100),
    "p4d.24xlarge": ("A100-40GB", 8, "EFA", 400),
    "p4de.24xlarge": ("A100-80GB", 8, "EFA", 400),
    "p5.48xlarge": ("H100-80GB", 8, "EFA", 3200),
    "p5e.48xlarge": ("H200", 8, "EFA", 3200),
    "p5en.48xlarge": ("H200", 8, "EFA", 3200),
    "g4dn.xlarge": ("T4", 1, "Ethernet", 25),
    "g4dn.12xlarge": ("T4", 4, "Ethernet", 50),
    "g5.xlarge": ("A10G", 1, "Ethernet", 10),
    "g5.12xlarge": ("A10G", 4, "Ethernet", 40),
    "g5.48xlarge": ("A10G", 8, "Ethernet", 100),
    "g6.xlarge": ("L4", 1, "Ethernet", 10),
    "g6.48xlarge": ("L4", 8, "Ethernet", 100),
    # Google
    "a2-highgpu-1g": ("A100-40GB", 1, "Ethernet", 24),
    "a2-highgpu-8g": ("A100-40GB", 8, "Ethernet", 100),
    "a2-ultragpu-8g": ("A100-80GB", 8, "Ethernet", 100),
    "a3-highgpu-8g": ("H100-80GB", 8, "Ethernet", 1000),
    "a3-megagpu-8g": ("H100-80GB", 8, "Ethernet", 1800),
    "a3-ultragpu-8g": ("H200", 8, "RoCE", 3200),
    # Microsoft
    "standard_nd96asr_v4": ("A100-40GB", 8, "InfiniBand", 1600),
    "standard_nd96amsr_a100_v4": ("A100-80GB", 8, "InfiniBand", 1600),
    "standard_nd96isr_h100_v5": ("H100-80GB", 8, "InfiniBand", 3200),
    "standard_nd96isr_h200_v5": ("H200", 8, "InfiniBand", 3200),
}
_OWN = re.compile(r"[dh]gx[- ]?(.+)", re.I)


def find_machine(name: str) -> Machine | None:
    """The machine a person means by a name; None: it is none that is known."""
    if rented := _RENTED.get(name.strip().lower()):
        device, number, kind, gigabits = rented
        return Machine(find_device(device), number, usual_link(kind, gigabits * GIGABIT))
    own = _OWN.fullmatch(name.strip())
    device_name = own[1].strip() if own else ""
    return Machine(find_device(device_name), 8) if is_known_device(device_name) else None
