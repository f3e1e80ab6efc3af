"""What a step did, watched from outside: where its time went, and what that means."""

from .capture import Capture, marked
from .detail import Detail
from .graphs import find_retained_graphs, live_graphs
from .kinds import VIEWS
from .reduce import Reduced, reduce_spans
from .spans import DATA, STEP, SYNC, UPDATE, Span

__all__ = [
    "DATA",
    "STEP",
    "SYNC",
    "UPDATE",
    "VIEWS",
    "Capture",
    "Detail",
    "Reduced",
    "Span",
    "find_retained_graphs",
    "live_graphs",
    "marked",
    "reduce_spans",
]
