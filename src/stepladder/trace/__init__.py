"""What a step did, watched from outside: where its time went, and what that means."""

from .attribute_time import reduce_spans
from .retained_graphs import find_retained_graphs, live_graphs

__all__ = [
    "find_retained_graphs",
    "live_graphs",
    "reduce_spans",
]
