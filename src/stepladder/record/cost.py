"""The cost of device time, for forecast and measurement: rent and energy."""

from __future__ import annotations


def dollars(seconds: float, num_devices: int, dollars_per_hour: float) -> float:
    """The rent of the devices."""
    return seconds / 3600 * num_devices * dollars_per_hour


def kilowatt_hours(seconds: float, num_devices: int, watts: float) -> float:
    """The energy of the boards, without hosts, network and cooling."""
    return seconds / 3600 * num_devices * watts / 1000
