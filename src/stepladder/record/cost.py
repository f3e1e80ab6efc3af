"""The cost of device time, for forecast and measurement: hours, rent, energy and CO2."""

from __future__ import annotations

from dataclasses import dataclass

# Of the world's electricity in 2024 (IEA, Electricity 2025); a grid's own may be 20 or 800.
WORLD_GRAMS_PER_KWH = 445.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What device time costs; None where the time, a price or a power is not known."""

    seconds: float | None
    device_hours: float | None
    kilowatt_hours: float | None
    co2_kilograms: float | None
    dollars: float | None


def cost_of(
    seconds: float | None,
    num_devices: int,
    *,
    watts: float | None,
    dollars_per_hour: float | None,
    grams_per_kwh: float = WORLD_GRAMS_PER_KWH,
) -> Cost:
    """All that follows from the time; of unknown time nothing does."""
    if seconds is None:
        return Cost(None, None, None, None, None)
    energy = None if watts is None else kilowatt_hours(seconds, num_devices, watts)
    rent = None if dollars_per_hour is None else dollars(seconds, num_devices, dollars_per_hour)
    co2 = None if energy is None else energy * grams_per_kwh / 1000
    return Cost(seconds, device_hours(seconds, num_devices), energy, co2, rent)


def device_hours(seconds: float, num_devices: int) -> float:
    return seconds / 3600 * num_devices


def dollars(seconds: float, num_devices: int, dollars_per_hour: float) -> float:
    """The rent of the devices."""
    return device_hours(seconds, num_devices) * dollars_per_hour


def kilowatt_hours(seconds: float, num_devices: int, watts: float) -> float:
    """The energy of the boards, without hosts, network and cooling."""
    return device_hours(seconds, num_devices) * watts / 1000
