"""The forecast of a plan on a cluster: memory by owner, time by cause, throughput, MFU and cost.

An unknown number is None: the time and all that depends on it for a device whose peak is unknown,
the cost if no rent is known.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .cost import WORLD_GRAMS_PER_KWH, Cost, cost_of
from .html_table import html_table
from .memory_by_owner import Memory
from .rehearsal import Rehearsal, RehearsedChange
from .time_by_cause import Time


@dataclass(frozen=True, slots=True)
class Interval:
    """A 90 % interval."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the planner expects of one step."""

    plan: str  # the plan's shorthand, every number settled
    memory: Memory  # of the fullest rank
    memory_limit_bytes: int | None  # what a process may use there; None: unknown
    host_bytes: int  # of each rank, when something is offloaded
    fits: bool
    reasons: tuple[str, ...]  # why not, or what was assumed
    num_devices: int
    time: Time | None  # of the slowest rank
    step_seconds: Interval | None = None
    tokens_per_step: int = 0
    flops_per_step: float | None = 0.0  # the model's own, over all devices; None: not countable
    peak_flops_per_second: float | None = None  # of one device, in the plan's compute type
    watts: float | None = None  # of one device at its limit
    dollars_per_hour: float | None = None  # of renting one device
    price_source: str = ""  # and date
    peak_bytes: Interval | None = None  # of that rank's memory, with the allocator's reserve
    unit: str = "tokens"  # what `tokens` count: samples, such as images, where one has one token
    # By a rank to others for their experts, in a step; None: experts are not spread.
    expert_sent_bytes: float | None = None
    rehearsal: Rehearsal | None = None  # of the fullest rank; None: memory is of the formulas
    changes: tuple[RehearsedChange, ...] = ()  # rehearsed too, where it does not fit

    @property
    def tokens_per_second(self) -> float | None:
        return None if self.time is None else self.tokens_per_step / self.time.step_seconds

    @property
    def tokens_per_second_per_device(self) -> float | None:
        rate = self.tokens_per_second
        return None if rate is None else rate / self.num_devices

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the model's FLOPs over the devices' peak in that time."""
        if self.time is None or self.peak_flops_per_second is None or self.flops_per_step is None:
            return None
        could = self.time.step_seconds * self.num_devices * self.peak_flops_per_second
        return self.flops_per_step / could

    @property
    def cluster_dollars_per_hour(self) -> float | None:
        """Of renting all devices."""
        each = self.dollars_per_hour
        return None if each is None else each * self.num_devices

    def seconds_for(self, tokens: float) -> float | None:
        rate = self.tokens_per_second
        return None if rate is None else tokens / rate

    def cost_for(self, tokens: float, grams_per_kwh: float = WORLD_GRAMS_PER_KWH) -> Cost:
        """What training on this many tokens costs: energy of the boards alone, at their limits.

        Args:
            grams_per_kwh: of CO2, by the electricity that is used.
        """
        return cost_of(
            self.seconds_for(tokens), self.num_devices, watts=self.watts,
            dollars_per_hour=self.dollars_per_hour, grams_per_kwh=grams_per_kwh,
        )  # fmt: skip

    def figures(self) -> dict[str, str]:
        """The numbers people look at, those that are known."""
        gib = 2**30
        limit = self.memory_limit_bytes
        room = f" of {limit / gib:.1f}" if limit else ""
        fits = "fits" if self.fits else "does not fit"
        found = {"memory": f"{self.memory.peak_bytes / gib:.2f}{room} GiB, {fits}"}
        if self.time is not None:
            span = self.step_seconds
            often = f", {span.low:.3g} to {span.high:.3g} nine times in ten" if span else ""
            found["step"] = f"{self.time.step_seconds:.3g} s{often}"
            found["throughput"] = f"{self.tokens_per_second_per_device:,.0f} {self.unit}/s a device"
        if self.expert_sent_bytes is not None:
            found["sent to experts"] = f"{self.expert_sent_bytes / 2**20:,.1f} MiB a rank"
        if self.mfu is not None:
            found["MFU"] = f"{self.mfu:.1%}"
        if self.cluster_dollars_per_hour is not None:
            found["price"] = f"${self.cluster_dollars_per_hour:,.2f} an hour"
        return {**found, **({"because": " ".join(self.reasons)} if self.reasons else {})}

    def listed(self) -> str:
        """The plan and its numbers, as one of several."""
        return "\n".join([self.plan, *(f"  {name}: {x}" for name, x in self.figures().items())])

    def price_notes(self) -> list[str]:
        """Where the price is from, or what to do where there is none."""
        if self.dollars_per_hour is None:
            return ["  price: unknown, as nobody lists one; price=2.5 counts dollars a device-hour"]
        source = self.price_source or "no source is known"
        return [f"  price of a device-hour: ${self.dollars_per_hour:,.2f} ({source})"]

    def __str__(self) -> str:
        return "\n".join([self.listed(), *self.price_notes()])

    def _repr_html_(self) -> str:
        return html_table(self.plan, self.figures().items())

    def to_dict(self) -> dict[str, Any]:
        """All fields and derived values as plain values."""
        return {
            **asdict(self),
            "memory": {**self.memory.by_owner(), "peak_bytes": self.memory.peak_bytes},
            "allocated_bytes": self.memory.allocated_bytes,
            "reserved_bytes": self.memory.reserved_bytes,
            "time": self.time and {**self.time.by_cause(), "step_seconds": self.time.step_seconds},
            "tokens_per_second_per_device": self.tokens_per_second_per_device,
            "mfu": self.mfu,
            "cluster_dollars_per_hour": self.cluster_dollars_per_hour,
            "rehearsal": self.rehearsal and self.rehearsal.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
        }
