"""A calibration: rates measured on a machine, which replace the planner's assumptions.

A field that is None or empty was not measured, and the planner's default applies. `stepladder
calibrate` writes one file per kind of device into the user's cache folder; runs refine its
corrections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError, require_type

from .time_by_cause import Time
from .user_cache import cache_path, write_atomically

REMEDY = "Write it again with 'stepladder calibrate'."
MIN_FACTOR, MAX_FACTOR = 0.25, 4.0  # beyond these it is the run that is unusual
LATEST_WEIGHT = 0.3  # of the latest run in a correction, once there are several
HOST = "host"  # the key of the correction for launch-bound steps
HOST_BOUND_SHARE = 0.05  # of a step waiting for the host, from which it counts as launch-bound
# Rates of a processor that its ranks divide among them. A launch takes one core, which each has.
SHARED = frozenset((
    "matrix_flops_per_second", "attention_flops_per_second", "convolution_flops_per_second",
    "colour_flops_per_second", "bandwidth_bytes_per_second", "rough_bytes_per_second",
    "elements_per_second", "optimizer_bytes_per_second",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timing:
    """One measurement, kept so that better formulas can be fitted to it later."""

    kind: str
    compute: str
    shape: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Correction:
    """Measured over forecast step time, averaged over runs."""

    factor: float = 1.0
    runs: int = 0

    def updated(self, ratio: float) -> Correction:
        """This correction after another run took `ratio` times its forecast."""
        seen = min(max(self.factor * ratio, MIN_FACTOR), MAX_FACTOR)
        weight = max(LATEST_WEIGHT, 1 / (self.runs + 1))
        return Correction(self.factor + weight * (seen - self.factor), self.runs + 1)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The rates measured on one kind of device."""

    device: str = ""  # as the device table names it
    matrix_flops_per_second: Mapping[str, float] = field(default_factory=dict)  # by compute type
    matrix_edges: Mapping[str, float] = field(default_factory=dict)  # reads of each operand
    attention_flops_per_second: Mapping[str, float] = field(default_factory=dict)  # forward
    convolution_flops_per_second: Mapping[str, float] = field(default_factory=dict)
    convolution_edges: Mapping[str, float] = field(default_factory=dict)
    colour_flops_per_second: Mapping[str, float] = field(default_factory=dict)  # of few channels
    bandwidth_bytes_per_second: float | None = None  # reached by element-wise kernels
    rough_bytes_per_second: Mapping[int, float] = field(default_factory=dict)  # by element's bytes
    elements_per_second: Mapping[str, float] = field(default_factory=dict)  # by kind, or by lane
    kernel_seconds: float | None = None  # ramp-up and end of a kernel
    optimizer_bytes_per_second: float | None = None  # reached by the update
    launch_seconds: float | None = None  # of the host, per kernel
    launch_factors: Mapping[str, float] = field(default_factory=dict)  # by mode of execution
    inside_bytes_per_second: float | None = None  # of a collective inside a node
    inside_latency_seconds: float | None = None  # of one hop of it
    between_bytes_per_second: float | None = None  # of a collective between nodes, per node
    context_bytes: int | None = None  # device memory of an idle process
    corrections: Mapping[str, Correction] = field(default_factory=dict)  # by compute type, and HOST
    timings: tuple[Timing, ...] = ()

    def correction(self, key: str) -> float:
        """The factor by which earlier runs corrected the forecast."""
        return self.corrections.get(key, Correction()).factor

    def refined(self, key: str, ratio: float) -> Calibration:
        """This calibration after a run that took `ratio` times its forecast."""
        known = self.corrections.get(key, Correction())
        return replace(self, corrections={**self.corrections, key: known.updated(ratio)})

    def shared_by(self, ranks: int) -> Calibration:
        """What each of so many ranks on one processor has of it: even shares, its launches apart.

        >>> Calibration(bandwidth_bytes_per_second=2e10).shared_by(2).bandwidth_bytes_per_second
        10000000000.0
        """
        if ranks == 1:
            return self
        table: dict[str, Any] = {name: getattr(self, name) for name in SHARED}
        for name, rate in table.items():
            if isinstance(rate, Mapping):
                table[name] = {key: each / ranks for key, each in rate.items()}
            elif rate is not None:
                table[name] = rate / ranks
        return replace(self, **table, timings=())

    def save(self, path: str | Path) -> None:
        text, file = json.dumps(asdict(self), indent=2) + "\n", Path(path)
        try:
            if file.exists() and not file.is_file():  # a terminal, a pipe
                file.write_text(text)
            else:  # atomically, because another run may be reading
                write_atomically(file.resolve(), text)
        except OSError as refused:
            raise RecordError(
                "calibration",
                f"{path} cannot be written ({refused.strerror})",
                "Name another file.",
            ) from refused

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        require_type("calibration", path, (str, Path), "Name what 'stepladder calibrate' wrote.")
        try:
            table: Any = json.loads(Path(path).read_text())
        except (OSError, ValueError) as broken:
            raise RecordError(
                "calibration", f"{path} cannot be read ({broken})", REMEDY
            ) from broken
        return cls.from_table(table, str(path))

    @classmethod
    def from_table(cls, table: Any, path: str = "the table") -> Calibration:
        """A calibration from plain values, as `asdict` makes them."""
        known = {f.name for f in fields(cls)}
        try:
            if not isinstance(table, dict) or not known >= set(table):
                raise TypeError
            timings = tuple(
                Timing(**{**each, "shape": tuple(each["shape"])})
                for each in table.get("timings", ())
            )
            corrections = {k: Correction(**v) for k, v in table.get("corrections", {}).items()}
            rough = {int(k): v for k, v in table.get("rough_bytes_per_second", {}).items()}
        except (TypeError, KeyError, AttributeError, ValueError) as foreign:
            raise RecordError("calibration", f"{path} holds something else", REMEDY) from foreign
        read = {"timings": timings, "corrections": corrections, "rough_bytes_per_second": rough}
        return cls(**{**table, **read})


def correction_key(time: Time, compute: str) -> str:
    """The correction that a run's measurement refines: its compute type's, or the host's.

    A small run is launch-bound, and must not slow down the forecasts of large ones.
    """
    return HOST if time.host > HOST_BOUND_SHARE * time.step_seconds else compute


def calibration_path(device: str) -> Path:
    """The file of this user's calibration of such a device."""
    return cache_path("calibration", device)


def load_calibration(device: str) -> Calibration | None:
    """This user's calibration of such a device, if there is one."""
    path = calibration_path(device)
    return Calibration.load(path) if path.exists() else None
