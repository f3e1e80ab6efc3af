"""What device-seconds cost, forecast and measured alike: rent, and the energy of the boards."""

from __future__ import annotations


def dollars(seconds: float, num_devices: int, dollars_per_hour: float) -> float:
    return seconds / 3600 * num_devices * dollars_per_hour


def kilowatt_hours(seconds: float, num_devices: int, watts: float) -> float:
    """Of the boards alone; hosts, network and cooling come on top."""
    return seconds / 3600 * num_devices * watts / 1000
