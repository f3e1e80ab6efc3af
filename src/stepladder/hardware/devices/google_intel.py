"""Google's and Intel's accelerators, which torch drives through plug-ins.

Google quotes the interconnect of a TPU as the sum of its links in one direction; Gaudi cards spend
21 of their 24 Ethernet ports on their seven neighbours and three on the network.
"""

from __future__ import annotations

from stepladder.hardware.board import GIGABIT, PCIE4, PCIE5, Board
from stepladder.hardware.device import Device, hbm, tera
from stepladder.hardware.link import usual_link


def _tpu(interconnect_gigabits: float, num_chips: int) -> Board:
    """Describe one host's chips of a pod; the interconnect goes on past the host."""
    link = usual_link("ICI", interconnect_gigabits * GIGABIT)
    return Board(link, PCIE4, num_chips, usual_link("Ethernet", 200 * GIGABIT))


def _gaudi(port_gigabits: float, host: float) -> Board:
    link = usual_link("on-board RoCE", 21 * port_gigabits * GIGABIT)
    return Board(link, host, 8, usual_link("RoCE", 8 * 3 * port_gigabits * GIGABIT))


ROWS = (
    Device(
        name="TPU-v4",
        vendor="Google",
        board=_tpu(2400, num_chips=4),
        memory_bytes=hbm(32),
        bandwidth_bytes_per_second=1228e9,
        peaks=tera(bf16=275, int8=275),
        power_watts=192,
        source="Google Cloud TPU v4 system architecture, 2023, and Jouppi et al., 2023",
    ),
    Device(
        name="TPU-v5e",
        vendor="Google",
        board=_tpu(1600, num_chips=8),
        memory_bytes=hbm(16),
        bandwidth_bytes_per_second=819e9,
        peaks=tera(bf16=197, int8=394),
        power_watts=None,
        source="Google Cloud TPU v5e system architecture, 2023",
    ),
    Device(
        name="TPU-v5p",
        vendor="Google",
        board=_tpu(4800, num_chips=4),
        memory_bytes=hbm(95),
        bandwidth_bytes_per_second=2765e9,
        peaks=tera(bf16=459, int8=918),
        power_watts=None,
        source="Google Cloud TPU v5p system architecture, 2024",
    ),
    Device(
        name="TPU-v6e",
        vendor="Google",
        board=_tpu(3584, num_chips=8),
        memory_bytes=hbm(32),
        bandwidth_bytes_per_second=1640e9,
        peaks=tera(bf16=918, int8=1836),
        power_watts=None,
        source="Google Cloud TPU v6e system architecture, 2024",
    ),
    Device(
        name="Gaudi2",
        vendor="Intel",
        board=_gaudi(100, PCIE4),
        memory_bytes=hbm(96),
        bandwidth_bytes_per_second=2450e9,
        peaks=tera(bf16=432, fp8=865),
        power_watts=600,
        source="Intel Gaudi 3 white paper, 2024: its comparison with Gaudi 2",
    ),
    Device(
        name="Gaudi3",
        vendor="Intel",
        board=_gaudi(200, PCIE5),
        memory_bytes=hbm(128),
        bandwidth_bytes_per_second=3700e9,
        peaks=tera(bf16=1835, fp8=1835),
        power_watts=900,
        source="Intel Gaudi 3 white paper, 2024: OAM; both types run at one rate",
    ),
)
