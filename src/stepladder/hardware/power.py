"""Power caps: a device whose board may draw fewer watts than its own limit.

A capped device is the table's row with another `power_watts`. Everything that follows from watts,
the clock of large matrix products and the energy, reads that field and needs to know nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from stepladder.errors import PlanError

from .device import Device
from .device_table import DEVICES

# The least that drivers accept, as they state it beside the limit. H100 and H200, A100, T4,
# RTX4090 and A6000 were read in drivers' own reports; the others were entered from memory.
LOWEST_WATTS = {
    "P100": 150, "V100-16GB": 150, "V100-32GB": 150, "V100-PCIe-16GB": 100, "V100-PCIe-32GB": 100,
    "T4": 60, "A10": 100, "A10G": 100, "A30": 100, "A40": 100, "A6000": 100, "RTX6000-Ada": 100,
    "A100-40GB": 100, "A100-80GB": 100, "A100-40GB-PCIe": 150, "A100-80GB-PCIe": 150, "A800": 100,
    "L4": 40, "L40": 100, "L40S": 100, "RTX3090": 100, "RTX4090": 150, "RTX5090": 400,
    "H100-80GB": 200, "H100-PCIe": 200, "H100-NVL": 200, "H800": 200, "H20": 200, "H200": 200,
    "H200-NVL": 200, "GH200": 100,
}  # fmt: skip
LOWEST_SHARE = 0.25  # of the limit, where no driver's least is known: as an A100's


def cap_power(part: str, device: Device, watts: float) -> Device:
    """The device with its power capped; `part` is the text that asks for it, for the error."""
    limit = usual_watts(device)
    if limit is None:
        problem = f"'{part}' caps {device}, whose power is not known"
        raise PlanError("cluster.power", problem, "Leave the cap out.")
    known = LOWEST_WATTS.get(device.name)
    lowest = known or round(LOWEST_SHARE * limit)
    if not lowest <= watts <= limit:
        span = f"which takes {lowest:g} to {limit:g} W"
        problem = f"'{part}' is no power cap for {device}, {span}"
        guess = "" if known else " The lower end is taken to be a quarter: no driver's is known."
        raise PlanError("cluster.power", problem, f"Write a number between.{guess}")
    return device if watts == limit else replace(device, power_watts=watts)


def usual_watts(device: Device) -> float | None:
    """The limit of a device that nobody caps."""
    row = DEVICES.get(device.name)
    return device.power_watts if row is None else row.power_watts


def write_cap(device: Device) -> str:
    """The cap as a word of a cluster; empty where there is none."""
    watts = device.power_watts
    if watts is None or watts == usual_watts(device):
        return ""
    return f"{watts:g} W" if float(f"{watts:g}") == watts else f"{watts!r} W"
