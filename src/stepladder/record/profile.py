"""The profile of a run: measured step time by cause, and findings; see `stepladder profile`.

Causes are disjoint parts of a step's wall time on one rank. Time that the trace does not explain is
`unexplained` and is never added to a cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .time_by_cause import Time

CAUSES = (
    "matrix", "attention", "memory_bound", "communication", "bubble", "optimizer", "data",
    "launch", "host",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProfileFinding:
    """One cause of slowness, or a suggestion to speed the run up."""

    kind: str  # data, sync, leak, straggler, launch, optimizer, communication, plan
    text: str
    fix: str = ""
    gain: float | None = None  # times faster, forecast or measured; None: unknown

    def __str__(self) -> str:
        gained = "" if self.gain is None else f" ({self.gain:.2f} ×)"
        return f"{self.text}. {self.fix}{gained}".rstrip() if self.fix else self.text


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of a step goes, and what limits it."""

    plan: str
    device: str
    steps: int
    step_seconds: float  # wall time under the profiler
    plain_seconds: float  # wall time of the same step without it
    causes: Mapping[str, float]  # seconds a step, keys of CAUSES
    collectives: Mapping[str, float] = field(default_factory=dict)  # exposed seconds, by name
    hidden: Mapping[str, float] = field(default_factory=dict)  # overlapped seconds, by name
    operations: float = 0.0  # kernels per step; on a CPU operations
    busy_share: float | None = None  # of the device
    flops_per_second: float | None = None  # the model's own, unprofiled; None: not counted
    peak_flops_per_second: float | None = None  # None: unknown
    bytes_per_second: float | None = None  # of memory-bound work while it runs
    peak_bytes_per_second: float | None = None
    own_seconds: tuple[tuple[float, ...], ...] = ()  # outside collectives, by rank and step
    # One step by rank, as intervals {name: a cause, start, seconds} of the dominant cause.
    lanes: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    bound: str = ""  # the verdict in a sentence
    findings: tuple[ProfileFinding, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def unexplained_seconds(self) -> float:
        return self.step_seconds - sum(self.causes.values())

    @property
    def overhead(self) -> float:
        """The slowdown by the profiler."""
        return self.step_seconds / self.plain_seconds if self.plain_seconds else 1.0

    @property
    def mfu(self) -> float | None:
        if self.flops_per_second is None or self.peak_flops_per_second is None:
            return None
        return self.flops_per_second / self.peak_flops_per_second

    @property
    def time(self) -> Time:
        """The causes of a forecast, where launching counts as host time."""
        known = {cause: spent for cause, spent in self.causes.items() if cause != "launch"}
        return Time(**{**known, "host": known.get("host", 0.0) + self.causes.get("launch", 0.0)})

    def share(self, *causes: str) -> float:
        """The share of these causes in the step's wall time."""
        return sum(self.causes.get(cause, 0.0) for cause in causes) / self.step_seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "unexplained_seconds": self.unexplained_seconds,
            "overhead": self.overhead,
            "mfu": self.mfu,
        }

    def __str__(self) -> str:
        largest = sorted(self.causes, key=lambda cause: -self.causes[cause])
        shares = [f"{x.replace('_', ' ')} {self.share(x):.0%}" for x in largest if self.causes[x]]
        step = f"step {1e3 * self.step_seconds:,.1f} ms under the profiler: {', '.join(shares)}"
        return "\n".join(filter(None, [step, self.bound, *(f"- {one}" for one in self.findings)]))
