"""Numbers beside the axes and on the bars of pictures, as people write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .tables import digits, size

MANY = 9  # numbers beside an axis
THOUSANDS = 1e3  # from here on digits are grouped


def count_whole(axis: Any) -> None:
    """Steps and ranks have no halves."""
    axis.get_major_locator().set_params(integer=True)


def mark_thousands(axis: Any, most: float) -> None:
    """60,000 instead of 60000."""
    if most >= THOUSANDS:
        axis.set_major_formatter("{x:,.10g}")


def mark_log(axis: Any, write: Callable[[float], str] = digits) -> None:
    """Plain numbers beside a logarithmic axis, and none as a power."""
    low, high = axis.get_view_interval()
    set_marks(axis, round_numbers(low, high), write)


def mark_bytes(axis: Any) -> None:
    """KiB and MiB beside a logarithmic axis of bytes."""
    low, high = axis.get_view_interval()
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    for apart in (1, 2, 4, 8):
        kept = [2**power for power in powers[::apart]]
        if len(kept) < MANY:
            break
    set_marks(axis, kept, size)


def set_marks(axis: Any, marks: Sequence[float], write: Callable[[float], str]) -> None:
    axis.set_ticks([], minor=True)
    axis.set_ticks(marks, [write(mark) for mark in marks])


def round_numbers(low: float, high: float) -> list[float]:
    """Round numbers from low to high on a logarithmic axis, as many as can be read."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for leading in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        every = [digit * 10.0**power for power in powers for digit in leading]
        inside = [number for number in every if low <= number <= high]
        if len(inside) >= MANY:
            break
        found = inside
    return found


def label_bars(axes: Any, bars: Any, labels: Sequence[str], fontsize: float = 9) -> None:
    """A number above each bar, on a ground of its own: no line behind it crosses it."""
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    axes.bar_label(bars, labels=labels, fontsize=fontsize, padding=2, bbox=ground)
