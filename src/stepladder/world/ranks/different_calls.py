"""The error of ranks that wait in different collectives, of which each called as many."""

from __future__ import annotations

from collections.abc import Mapping

from stepladder.errors import LostRank


def different_calls(reason: str, places: Mapping[int, str]) -> LostRank:
    """The error where ranks called as many collectives: those may not have been the same ones."""
    listed = [f"rank {rank} at {places[rank]}" for rank in sorted(places)[:4] if places[rank]]
    more = "" if len(places) <= 4 else f" (and {len(places) - 4} more)"
    return LostRank(
        "world",
        f"{reason}, while every rank is alive and called as many collectives: "
        f"{', '.join(listed)}{more}",
        "If ranks run different parts of the module, as by their data, use ddp or zero1; else see "
        "the network between the machines, or raise run.timeout_seconds.",
    )
