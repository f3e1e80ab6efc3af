"""What a step did, watched from outside: where its time went, and what that means."""

from .capture import Capture, marked
from .detail import Detail
from .graphs import find_retained_graphs, live_graphs
from .lanes import lane_of
from .offers import Offer, Outlook
from .reduce import Reduced, reduce_spans
from .spans import DATA, STEP, SYNC, UPDATE, Span
from .verdict import Evidence, find_stragglers, judge

__all__ = [
    "DATA",
    "STEP",
    "SYNC",
    "UPDATE",
    "Capture",
    "Detail",
    "Evidence",
    "Offer",
    "Outlook",
    "Reduced",
    "Span",
    "find_retained_graphs",
    "find_stragglers",
    "judge",
    "lane_of",
    "live_graphs",
    "marked",
    "reduce_spans",
]
