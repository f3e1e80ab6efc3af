"""torch's profiler around a few steps, its events as spans.

Nothing here runs, and no hook is set, unless a profile is asked for.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from .spans import DATA, OPTIMIZER, STEP, SYNC, UPDATE, Kind, Span, own_moments

FLOOR = "stepladder.floor"
TRIES = 64  # operations that do nothing, whose median is what asking for one costs
PHASES = (DATA, STEP, UPDATE, SYNC, FLOOR)
BACKENDS = ("gloo:", "mpi:", "ucc:")  # which mark a collective while it is under way
RUNTIME = ("cuda", "cu", "hip")


class Capture:
    """Records what happens inside it; afterwards `spans` and `floor` are there."""

    def __init__(self, device: torch.device) -> None:
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        # torch 2.13 prints a line at every start and stop, above the level of errors.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        self._profile = profile(activities=activities)
        self.spans: list[Span] = []
        self.floor = 0

    def __enter__(self) -> Capture:
        self._profile.__enter__()
        one = torch.ones(1)
        with record_function(FLOOR):
            for _ in range(TRIES):
                one.add(one)
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        spans = spans_of(self._profile.profiler.kineto_results.events())  # type: ignore[union-attr]
        self.floor = floor_of(spans)
        self.spans = spans

    def save(self, path: Path) -> Path:
        """Keep the trace for Perfetto or Chrome; `.gz` is compressed."""
        self._profile.export_chrome_trace(str(path))
        return path


def spans_of(events: Any) -> list[Span]:
    """The profiler's events as spans; those that say nothing of time are left out."""
    listed = list(events)
    asked = {
        event.correlation_id(): event.start_ns()
        for event in listed
        if event.device_type() == DeviceType.CPU and event.name().startswith(RUNTIME)
    }
    found = []
    for event in listed:
        kind = kind_of(event)
        if kind is None:
            continue
        host = event.device_type() == DeviceType.CPU
        lane = event.start_thread_id() if host else event.device_resource_id()
        start = event.start_ns()
        found.append(
            Span(
                event.name(), start, start + event.duration_ns(),
                f"{'thread' if host else 'stream'} {lane}", kind,
                None if host else asked.get(event.correlation_id()),
            )
        )  # fmt: skip
    return found


def kind_of(event: Any) -> Kind | None:
    name, host = event.name(), event.device_type() == DeviceType.CPU
    if event.is_user_annotation():  # also on a device, where it spans the kernels inside it
        if not host:
            return None
        if name in PHASES or name.startswith(OPTIMIZER):
            return "phase"
        return "travel" if event.is_async() and name.startswith(BACKENDS) else None
    if not host:
        return "copy" if name.startswith(("Memcpy", "Memset")) else "kernel"
    if name.startswith(RUNTIME) and "::" not in name:
        return "runtime"
    return "op" if "::" in name else None


def floor_of(spans: list[Span]) -> int:
    """What an operation takes that has nothing to do, in nanoseconds."""
    marks = [span for span in spans if span.name == FLOOR]
    if not marks:
        return 0
    mark = marks[0]
    tiny = [
        span
        for span in spans
        if span.kind == "op" and span.lane == mark.lane and mark.start <= span.start < mark.end
    ]
    own = [sum(b - a for a, b in each.intervals) for each in own_moments(tiny)]
    return int(statistics.median(own)) if own else 0


@contextmanager
def marked(owner: type, name: str, phase: str) -> Iterator[None]:
    """Mark every call of a class's method as a phase, for as long as this lasts."""
    method: Callable[..., Any] = getattr(owner, name)
    inherited = name not in vars(owner)

    def call(*args: Any, **kwargs: Any) -> Any:
        with record_function(phase):
            return method(*args, **kwargs)

    setattr(owner, name, call)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, method)
