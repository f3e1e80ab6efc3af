"""Downsampling of metrics over steps in bounded memory: buckets with minimum, maximum and mean.

A bucket starts as one row. When a table has too many buckets, neighbours are merged and each bucket
from then on takes twice as many rows; so a run of a million steps costs as much as one of sixty
thousand, no peak is lost, and a plot of any range is a few hundred slices. Each bucket also knows
where its rows are in the journal, for reading them one by one.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from operator import add
from typing import Any

CAPACITY = 2**16  # buckets
NUMBERS = (float, int)  # and not bool
MAX_VALUE = 3e38  # of float32
MAX_COLUMNS = 64  # because a journal may name any number of owners or collectives


class Column:
    """One metric, bucket by bucket; a bucket may be empty."""

    __slots__ = ("counts", "highs", "lows", "totals")

    def __init__(self) -> None:
        self.lows, self.highs = array("f"), array("f")
        self.totals, self.counts = array("d"), array("I")

    def reach(self, buckets: int) -> Column:
        """Extend to this many buckets, the new ones empty."""
        more = buckets - len(self.counts)
        if more > 0:
            self.lows.extend([math.inf] * more)
            self.highs.extend([-math.inf] * more)
            self.totals.extend([0.0] * more)
            self.counts.extend([0] * more)
        return self

    def add(self, values: list[float], bucket: int) -> None:
        """Add values to the newest bucket of the table."""
        if len(self.counts) <= bucket:
            self.reach(bucket)
            self.lows.append(min(values))
            self.highs.append(max(values))
            self.totals.append(sum(values))
            self.counts.append(len(values))
            return
        self.lows[bucket] = min(self.lows[bucket], min(values))
        self.highs[bucket] = max(self.highs[bucket], max(values))
        self.totals[bucket] += sum(values)
        self.counts[bucket] += len(values)

    def halve(self) -> None:
        self.lows = array("f", map(min, self.lows[::2], self.lows[1::2]))
        self.highs = array("f", map(max, self.highs[::2], self.highs[1::2]))
        self.totals = array("d", map(add, self.totals[::2], self.totals[1::2]))
        self.counts = array("I", map(add, self.counts[::2], self.counts[1::2]))

    def cut(self, buckets: int) -> None:
        for values in (self.lows, self.highs, self.totals, self.counts):
            del values[buckets:]

    def window(self, slices: list[slice], *, single: bool) -> dict[str, list[Any]] | None:
        """Mean, minimum and maximum of each slice; None if the column is empty there.

        Args:
            single: each slice is one row, so the mean is enough.
        """
        counts = [sum(self.counts[one]) for one in slices]
        if not any(counts):
            return None
        totals = [sum(self.totals[one]) for one in slices]
        mean = [round_for_display(t / n) if n else None for t, n in zip(totals, counts)]
        if single:
            return {"mean": mean}
        return {
            "mean": mean,
            "low": [
                round_for_display(min(self.lows[s])) if n else None for s, n in zip(slices, counts)
            ],
            "high": [
                round_for_display(max(self.highs[s])) if n else None for s, n in zip(slices, counts)
            ],
        }


class Table:
    """Columns over increasing steps, which can be rewound to an earlier step.

    Args:
        names: of the columns; None: all that occur in rows.
    """

    def __init__(self, capacity: int = CAPACITY, names: tuple[str, ...] | None = None) -> None:
        assert capacity % 2 == 0, "neighbours are merged in pairs"
        self.capacity, self.names = capacity, names
        self.rows_per_bucket = 1
        self.firsts, self.lasts = array("q"), array("q")  # steps
        self.starts, self.ends = array("Q"), array("Q")  # bytes in the journal
        self.rows = array("I")
        self.columns: dict[str, Column] = {}
        self._pending: list[
            Mapping[str, Any]
        ] = []  # rows of the newest bucket, not yet in the columns

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def last_step(self) -> int | None:
        return self.lasts[-1] if self.lasts else None

    def add(self, step: int, values: Mapping[str, Any], start: int = 0, end: int = 0) -> None:
        """Add a row with a larger step than all before; values that are not finite are dropped."""
        if not self.rows or self.rows[-1] >= self.rows_per_bucket:
            self._open_bucket(step, start)
        self.lasts[-1], self.ends[-1] = step, end
        self.rows[-1] += 1
        self._pending.append(values)

    def _count(self) -> None:
        """Add the pending rows to the columns, together since that is three times as fast."""
        if not self._pending:
            return
        waiting, self._pending = self._pending, []
        for name in self.names or dict.fromkeys(name for row in waiting for name in row):
            given: list[Any] = [row.get(name) for row in waiting]
            values = [v for v in given if type(v) in NUMBERS and -MAX_VALUE < v < MAX_VALUE]
            column = self.columns.get(name) or self._new_column(name)
            if values and column:
                column.add(values, len(self.rows) - 1)

    def _new_column(self, name: str) -> Column | None:
        return self.columns.setdefault(name, Column()) if len(self.columns) < MAX_COLUMNS else None

    def _open_bucket(self, step: int, start: int) -> None:
        self._count()
        if len(self.rows) >= self.capacity:
            self._halve()
        self.firsts.append(step)
        self.lasts.append(step)
        self.starts.append(start)
        self.ends.append(start)
        self.rows.append(0)

    def _halve(self) -> None:
        self.firsts, self.lasts = self.firsts[::2], self.lasts[1::2]
        self.starts, self.ends = self.starts[::2], self.ends[1::2]
        self.rows = array("I", map(add, self.rows[::2], self.rows[1::2]))
        for column in self.columns.values():
            column.reach(self.capacity).halve()
        self.rows_per_bucket *= 2

    def rewind(self, step: int) -> tuple[int, int] | None:
        """Remove that step and all later ones.

        If that splits a bucket the whole bucket is removed; its place in the journal is returned,
        so that the rows before the step can be read again.
        """
        self._count()
        keep = bisect_left(self.lasts, step)
        torn = keep < len(self.rows) and self.firsts[keep] < step
        place = (self.starts[keep], self.ends[keep]) if torn else None
        for values in (self.firsts, self.lasts, self.starts, self.ends, self.rows):
            del values[keep:]
        for column in self.columns.values():
            column.cut(keep)
        return place

    def span(self, first: int, last: int) -> range:
        """The buckets that overlap a range of steps."""
        return range(bisect_left(self.lasts, first), bisect_right(self.firsts, last))

    def window(self, first: int, last: int, points: int) -> dict[str, Any]:
        """At most this many points of a range, each with minimum, mean and maximum of its rows.

        A point of one row has only a mean.
        """
        span = self.span(first, last)
        width = max(1, -(-len(span) // points))
        slices = [
            slice(start, min(start + width, span.stop))
            for start in range(span.start, span.stop, width)
        ]
        self._count()
        rows = width * self.rows_per_bucket
        columns = {
            name: column.reach(len(self.rows)).window(slices, single=rows == 1)
            for name, column in self.columns.items()
        }
        return {
            "steps": [self.lasts[one.stop - 1] for one in slices],
            "rows_per_point": rows,
            "columns": {name: found for name, found in columns.items() if found},
        }


def round_for_display(value: float) -> float:
    """The value with as many digits as a plot can show."""
    return float(f"{value:.6g}")
