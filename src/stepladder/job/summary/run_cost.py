"""What a run cost: money and energy per million tokens."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from stepladder.hardware import Device, recognise_device
from stepladder.record import Report, read_journal
from stepladder.record.cost import dollars, kilowatt_hours
from stepladder.world import World, device_memory_bytes

MILLION = 1e6


@dataclass(frozen=True, slots=True)
class RunCost:
    """What a million tokens cost; None where the device's price or power is not known."""

    dollars_per_million_tokens: float | None = None
    kwh_per_million_tokens: float | None = None
    power_source: str = "at the board's limit"  # or "measured power"

    def figures(self) -> dict[str, float | None]:
        """Named as they are displayed."""
        return {
            "dollars per million tokens": self.dollars_per_million_tokens,
            f"kWh per million tokens ({self.power_source})": self.kwh_per_million_tokens,
        }


def cost_of(
    world: World, tokens_per_second: float | None, watts: Sequence[float] = ()
) -> RunCost | None:
    """What a million tokens cost at this rate; None where no rate was measured.

    Args:
        watts: measured of one device; without them its limit is used, and named as the source.
    """
    if not tokens_per_second:
        return None
    device = device_of(world)
    power = statistics.fmean(watts) if watts else device and device.power_watts
    price = device and device.dollars_per_hour
    seconds, ranks = MILLION / tokens_per_second, world.place.num_ranks
    return RunCost(
        dollars(seconds, ranks, price) if price else None,
        kilowatt_hours(seconds, ranks, power) if power else None,
        "measured power" if watts else "at the board's limit",
    )


def cost_of_run(world: World, folder: Path, reports: Sequence[Report]) -> RunCost | None:
    """The cost at the median rate of the steady reports, with the power in the run's journal."""
    steady = [report.tokens_per_second for report in reports[1:] or reports]
    # Only a GPU's journal holds readings, and a journal may be long.
    watts = measured_watts(folder) if world.device.type == "cuda" and world.is_rank_zero else ()
    return cost_of(world, statistics.median(steady) if steady else None, watts)


def device_of(world: World) -> Device | None:
    if world.device.type != "cuda":
        return None
    return recognise_device(
        torch.cuda.get_device_name(world.device), device_memory_bytes(world.device)
    )


def measured_watts(folder: Path) -> list[float]:
    """Readings of power in a run's journal."""
    found = (entry.get("power_w") for entry in read_journal(folder, kind="device"))
    return [reading for reading in found if isinstance(reading, int | float)]
