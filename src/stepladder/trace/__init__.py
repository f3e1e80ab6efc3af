"""Profiling a step with torch's profiler: time by cause, findings and suggestions."""

from .attribute_time import reduce_spans
from .retained_graphs import find_retained_graphs, live_graphs

__all__ = [
    "find_retained_graphs",
    "live_graphs",
    "reduce_spans",
]
