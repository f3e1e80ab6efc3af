"""The time of Newton-Schulz, which muon runs on whole matrices: products, and what they wait for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OrthogonaliseRates:
    """How fast a rank multiplies and sends."""

    flops_per_second: float
    bytes_per_second: float  # to and from other ranks
    latency: float  # seconds of a collective without bytes

    def seconds(self, flops: float, num_bytes: float, collectives: int) -> float:
        """Of the rank with most to do; what travels between rounds hides nothing of the first."""
        sent = num_bytes / self.bytes_per_second + collectives * self.latency
        return flops / self.flops_per_second + sent


def newton_schulz_flops(rows: float, columns: float, steps: int) -> float:
    """Of one matrix: an iteration squares the smaller side, squares that, and multiplies back."""
    small, large = sorted((rows, columns))
    return steps * (4.0 * small * small * large + 2.0 * small**3)
