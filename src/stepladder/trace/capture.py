"""Capturing a few steps with torch's profiler and converting its events to spans.

Nothing here runs, and no hook is set, unless a profile was requested.
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

from .spans import DATA, OPTIMIZER, STEP, SYNC, UPDATE, Kind, Span, self_times

FLOOR = "stepladder.floor"
NUM_EMPTY_OPERATIONS = 64  # their median duration is the cost of dispatching one
PHASES = (DATA, STEP, UPDATE, SYNC, FLOOR)
BACKENDS = ("gloo:", "mpi:", "ucc:")  # which annotate running collectives
RUNTIME = ("cuda", "cu", "hip")


class Capture:
    """Context that profiles its body; afterwards `spans` and `floor` are set."""

    def __init__(self, device: torch.device) -> None:
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        # torch 2.13 logs every start and stop above the level of errors.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        self._profile = profile(activities=activities)
        self.spans: list[Span] = []
        self.floor = 0

    def __enter__(self) -> Capture:
        self._profile.__enter__()
        one = torch.ones(1)
        with record_function(FLOOR):
            for _ in range(NUM_EMPTY_OPERATIONS):
                one.add(one)
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        spans = to_spans(self._profile.profiler.kineto_results.events())  # type: ignore[union-attr]
        self.floor = dispatch_floor(spans)
        self.spans = spans

    def save(self, path: Path) -> Path:
        """Save the trace for Perfetto or Chrome; `.gz` is compressed."""
        self._profile.export_chrome_trace(str(path))
        return path


def to_spans(events: Any) -> list[Span]:
    """Convert the profiler's events to spans; events of other kinds are dropped."""
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


def dispatch_floor(spans: list[Span]) -> int:
    """The median duration of an empty operation, in nanoseconds."""
    marks = [span for span in spans if span.name == FLOOR]
    if not marks:
        return 0
    mark = marks[0]
    tiny = [
        span
        for span in spans
        if span.kind == "op" and span.lane == mark.lane and mark.start <= span.start < mark.end
    ]
    own = [sum(b - a for a, b in each.intervals) for each in self_times(tiny)]
    return int(statistics.median(own)) if own else 0


@contextmanager
def mark_calls(owner: type, name: str, phase: str) -> Iterator[None]:
    """Context in which every call of a class's method is marked as a phase."""
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
