"""What was measured on a machine and replaces what the planner would assume of it.

Every field may be None or empty, which means: not measured, assume the usual. `stepladder
calibrate` writes one for each kind of device into the user's cache folder; runs refine its
corrections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError

from .time_by_cause import Time
from .user_cache import cache_path, replace_whole

REMEDY = "Write it again with 'stepladder calibrate'."
LEAST, MOST = 0.25, 4.0  # what a run may say of a forecast before it is the run that is odd
NEWEST = 0.3  # weight of the latest run in a correction, once there are several
HOST = "host"  # the correction of what a launch costs the host
WAITS = 0.05  # of a step in which the device waits: then it is the host that sets its pace


@dataclass(frozen=True, slots=True)
class Timing:
    """One thing that was timed, kept so that better formulas can be fitted to it later."""

    kind: str
    compute: str
    shape: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Correction:
    """Measured over forecast step time, averaged over runs."""

    factor: float = 1.0
    runs: int = 0

    def after(self, ratio: float) -> Correction:
        """This correction once another run came out at `ratio` of what it forecast."""
        seen = min(max(self.factor * ratio, LEAST), MOST)
        weight = max(NEWEST, 1 / (self.runs + 1))
        return Correction(self.factor + weight * (seen - self.factor), self.runs + 1)


@dataclass(frozen=True, slots=True)
class Calibration:
    device: str = ""  # as the device table names it
    matrix_flops_per_second: Mapping[str, float] = field(default_factory=dict)  # by compute type
    matrix_edges: Mapping[str, float] = field(default_factory=dict)  # times an operand is moved
    attention_flops_per_second: Mapping[str, float] = field(default_factory=dict)  # forward
    convolution_flops_per_second: Mapping[str, float] = field(default_factory=dict)
    convolution_edges: Mapping[str, float] = field(default_factory=dict)
    colour_flops_per_second: Mapping[str, float] = field(default_factory=dict)  # of few channels
    bandwidth_bytes_per_second: float | None = None  # reached by element-wise kernels
    rough_bytes_per_second: Mapping[int, float] = field(default_factory=dict)  # by element's bytes
    elements_per_second: Mapping[str, float] = field(default_factory=dict)  # by kind, or by lane
    kernel_seconds: float | None = None  # until a kernel is at its pace, and after
    optimizer_bytes_per_second: float | None = None  # reached by the update
    launch_seconds: float | None = None  # of the host, per kernel
    launch_factors: Mapping[str, float] = field(default_factory=dict)  # by way of running
    inside_bytes_per_second: float | None = None  # of a collective inside a node
    inside_latency_seconds: float | None = None  # of one hop of it
    between_bytes_per_second: float | None = None  # of a collective between nodes, per node
    context_bytes: int | None = None  # device memory of an idle process
    corrections: Mapping[str, Correction] = field(default_factory=dict)  # by compute type, and HOST
    timings: tuple[Timing, ...] = ()

    def correction(self, pace: str) -> float:
        """What runs on this machine say a forecast must be multiplied by."""
        return self.corrections.get(pace, Correction()).factor

    def refined(self, pace: str, ratio: float) -> Calibration:
        """This calibration after a run at such a pace that took `ratio` times its forecast."""
        known = self.corrections.get(pace, Correction())
        return replace(self, corrections={**self.corrections, pace: known.after(ratio)})

    def save(self, path: str | Path) -> None:
        text, file = json.dumps(asdict(self), indent=2) + "\n", Path(path)
        try:
            if file.exists() and not file.is_file():  # a terminal, a pipe
                file.write_text(text)
            else:  # whole or not at all: another run may be reading
                replace_whole(file.resolve(), text)
        except OSError as refused:
            raise RecordError(
                "calibration",
                f"{path} cannot be written ({refused.strerror})",
                "Name another file.",
            ) from refused

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
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


def pace_of(time: Time, compute: str) -> str:
    """What a run of such steps says something about: its compute type, or the host it waits for.

    Else a small run, which waits for the host, would slow down the forecasts of all large ones.
    """
    return HOST if time.host > WAITS * time.step_seconds else compute


def calibration_path(device: str) -> Path:
    """Where this user keeps what was measured on such a device."""
    return cache_path("calibration", device)


def load_calibration(device: str) -> Calibration | None:
    """What was measured on such a device on this machine, if anything was."""
    path = calibration_path(device)
    return Calibration.load(path) if path.exists() else None
