"""The price of training under a plan: device-hours, energy, CO2 and rent, in readable units."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.planner.parse_inputs import GIVEN
from stepladder.record import Forecast
from stepladder.record.cost import WORLD_GRAMS_PER_KWH
from stepladder.workload import Facts

from .tables import table

UNKNOWN = "unknown"
USUAL = {"tokens": 1e9, "samples": 1e6}  # priced where nobody says how many
LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
TIMES = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "s"))
ENERGIES = ((1000.0, "MWh"), (1.0, "kWh"), (0.001, "Wh"))  # in kWh
MASSES = ((1000.0, "t"), (1.0, "kg"), (0.001, "g"))  # in kg


@dataclass(frozen=True, slots=True)
class Priced:
    """How much is trained on, on what, with which electricity."""

    amount: float
    unit: str  # tokens, or samples where a sample has one
    devices: str  # GPU, CPU or TPU
    grams_per_kwh: float

    def record(self, found: Forecast) -> dict[str, Any]:
        """For programs."""
        cost = asdict(found.cost_for(self.amount, self.grams_per_kwh))
        seconds = cost.pop("seconds")
        days = None if seconds is None else seconds / TIMES[0][0]
        grid = {"grams_co2_per_kwh": self.grams_per_kwh}
        return {self.unit: self.amount, "days": days, **cost, **grid}

    def cells(self, found: Forecast) -> list[str]:
        cost = found.cost_for(self.amount, self.grams_per_kwh)
        return [
            in_unit(cost.seconds, TIMES),
            number(cost.device_hours),
            in_unit(cost.kilowatt_hours, ENERGIES),
            in_unit(cost.co2_kilograms, MASSES),
            money(cost.dollars),
        ]

    def line(self, found: Forecast) -> str:
        """The price of one plan as a sentence."""
        time, hours, energy, co2, rent = self.cells(found)
        if time == UNKNOWN:
            return f"{spoken(self.amount)} {self.unit}: unknown time, so unknown price"
        said = [
            time,
            f"{hours} {self.devices}-hours",
            "unknown energy" if energy == UNKNOWN else energy,
            "unknown CO2" if co2 == UNKNOWN else f"{co2} CO2",
            "unknown rent" if rent == UNKNOWN else rent,
        ]
        return f"{spoken(self.amount)} {self.unit}: {', '.join(said)}"

    def rent(self, cluster: Cluster) -> str:
        """What an hour of the cluster costs, and who says so."""
        device, many = cluster.device, cluster.num_devices
        if device.dollars_per_hour is None:
            ask = f"--price 2.5 counts dollars for one {self.devices} and hour"
            return f"Rent unknown: the price table has none for {device}; {ask}."
        each, source = money(device.dollars_per_hour), device.price_source
        whole = money(device.dollars_per_hour * many)
        own = "" if source == GIVEN else "; --price sets another"
        return f"{whole} an hour: {many:,} × {each} ({source}{own})"

    def show(self, forecasts: Sequence[Forecast]) -> None:
        """The price of every plan, one a row."""
        if forecasts[0].time is None:
            return
        title = f"Price of {spoken(self.amount)} {self.unit}, CO2 at {self.grams_per_kwh:g} g/kWh"
        columns = ["plan", "time", f"{self.devices}-hours", "energy", "CO2", "rent"]
        table(title, columns, [[found.plan, *self.cells(found)] for found in forecasts], ["plan"])


def configure_price(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", "--samples", type=float, metavar="N", help="price of training so many, 1e12"
    )
    parser.add_argument(
        "--price",
        type=float,
        metavar="DOLLARS",
        help="rent of one device for one hour, 2.5; else the dated table's",
    )
    parser.add_argument(
        "--grid",
        type=float,
        default=WORLD_GRAMS_PER_KWH,
        metavar="G",
        help=f"grams of CO2 per kWh; the world's average is {WORLD_GRAMS_PER_KWH:g}",
    )


def read_price(options: argparse.Namespace, facts: Facts, cluster: Cluster) -> Priced:
    """What is to be priced, from the options."""
    amount = USUAL[facts.unit] if options.tokens is None else options.tokens
    return price_of(amount, options.grid, facts, cluster)


def price_of(amount: float, grams_per_kwh: float, facts: Facts, cluster: Cluster) -> Priced:
    """So many tokens or samples of the workload, on the cluster, with that electricity."""
    if not 0 < amount < float("inf"):
        raise PlanError("tokens", f"{amount} is not a number to train on", "Use 1e12.")
    if not 0 <= grams_per_kwh < float("inf"):
        problem = f"{grams_per_kwh} is not a number of grams of CO2 per kWh"
        raise PlanError("grid", problem, f"The world's average is {WORLD_GRAMS_PER_KWH:g}.")
    device = cluster.device
    kind = "CPU" if device.is_cpu else "TPU" if device.name.startswith("TPU") else "GPU"
    return Priced(amount, facts.unit, kind, grams_per_kwh)


def hourly(found: Forecast) -> str:
    """The rent of all devices for one hour, as a cell under $/h."""
    rent = found.cluster_dollars_per_hour
    return UNKNOWN if rent is None else f"{rent:,.0f}" if rent >= 100 else f"{rent:,.2f}"


def in_unit(value: float | None, units: Sequence[tuple[float, str]]) -> str:
    """A value in the largest unit of which there is one at least."""
    if value is None:
        return UNKNOWN
    size, unit = next((each for each in units if value >= each[0]), units[-1])
    return f"{number(value / size)} {unit}"


def spoken(amount: float) -> str:
    """A large number in words, such as 15 trillion."""
    size, word = next((each for each in LARGE if amount >= each[0]), (1.0, ""))
    return f"{number(amount / size)} {word}".rstrip()


def number(value: float | None) -> str:
    """Three digits, or all in front of the point."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def money(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return (
        f"${value:,.0f}" if value >= 100 else f"${value:,.2f}" if value >= 0.01 else f"${value:.1g}"
    )
