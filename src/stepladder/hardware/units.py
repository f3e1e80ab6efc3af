"""Bandwidths and memory sizes with units, parsed and written without loss.

A small b is bits and a capital B bytes; "gb/s" could be either, so it is refused.
"""

from __future__ import annotations

from stepladder.errors import PlanError

_BITS = {"kb/s": 1e3, "Mb/s": 1e6, "Gb/s": 1e9, "Tb/s": 1e12}
_BYTES = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
SPEEDS = {unit: scale / 8 for unit, scale in _BITS.items()} | _BYTES
SIZES = {"B": 1, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def read_speed(part: str, number: float, unit: str) -> float:
    """Return bytes a second; `part` is the text it stands in, for the error."""
    spelled = f"{unit.removesuffix('ps')}/s" if unit.endswith("ps") else unit
    if spelled not in SPEEDS:
        remedy = "A small b is bits and a capital B bytes: Gb/s, GB/s, Tb/s or TB/s."
        raise PlanError("cluster.link", f"'{unit}' in '{part}' is not a speed", remedy)
    if not number > 0:
        raise PlanError("cluster.link", f"'{part}' carries nothing", "Leave it out if unknown.")
    return number * SPEEDS[spelled]


def read_size(part: str, number: float, unit: str) -> int:
    """Return bytes; `part` is the text it stands in, for the error."""
    if unit not in SIZES:
        remedy = f"Units of memory: {', '.join(SIZES)}."
        raise PlanError("cluster.host_memory", f"'{unit}' in '{part}' is not one", remedy)
    if not number > 0:
        raise PlanError("cluster.host_memory", f"'{part}' is none", "Leave it out if unknown.")
    return round(number * SIZES[unit])


def write_speed(bytes_per_second: float, unit: str, directions: int) -> str:
    """Write the sum of so many directions in a unit, or plainly where that would lose a bit."""
    text = f"{bytes_per_second * directions / SPEEDS[unit]:.12g}"
    if float(text) * SPEEDS[unit] / directions == bytes_per_second:
        return f"{text} {unit}"
    return f"{bytes_per_second!r} B/s per direction"


def write_size(num_bytes: int) -> str:
    """Write bytes in the largest unit that takes a short number, or plainly."""
    for unit in ("GiB", "TB", "GB", "MiB"):
        text = f"{num_bytes / SIZES[unit]:.6g}"
        if "e" not in text and float(text) * SIZES[unit] == num_bytes:
            return f"{text} {unit}"
    return f"{num_bytes} B"


def write_latency(seconds: float) -> str:
    text = f"{seconds * 1e6:.12g}"
    return f"{text} us" if float(text) / 1e6 == seconds else f"{seconds!r} s"
