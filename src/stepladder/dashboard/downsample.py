"""Numbers over steps in bounded memory: buckets that hold lowest, highest and mean.

A bucket begins as one row. When there are more buckets than a table may have, neighbours are merged
and each bucket from then on takes twice as many rows; so a run of a million steps costs what a run
of sixty thousand does, no peak is ever lost, and a picture of any range is a few hundred slices.
Each bucket also knows where in the journal its rows lie, for whoever wants them one by one.
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
LARGEST = 3e38  # that a column can hold
COLUMNS = 64  # a foreign journal may name any number of owners or collectives


class Column:
    """One quantity, bucket by bucket; a bucket without it holds nothing."""

    __slots__ = ("counts", "highs", "lows", "totals")

    def __init__(self) -> None:
        self.lows, self.highs = array("f"), array("f")
        self.totals, self.counts = array("d"), array("I")

    def reach(self, buckets: int) -> Column:
        """Have so many buckets, the new ones empty."""
        more = buckets - len(self.counts)
        if more > 0:
            self.lows.extend([math.inf] * more)
            self.highs.extend([-math.inf] * more)
            self.totals.extend([0.0] * more)
            self.counts.extend([0] * more)
        return self

    def add(self, values: list[float], bucket: int) -> None:
        """Count values in the newest bucket of the table."""
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
        """Mean, lowest and highest of each slice; None where the column says nothing there.

        Args:
            single: each slice is one row, of which the mean says everything.
        """
        counts = [sum(self.counts[one]) for one in slices]
        if not any(counts):
            return None
        totals = [sum(self.totals[one]) for one in slices]
        mean = [short(t / n) if n else None for t, n in zip(totals, counts)]
        if single:
            return {"mean": mean}
        return {
            "mean": mean,
            "low": [short(min(self.lows[s])) if n else None for s, n in zip(slices, counts)],
            "high": [short(max(self.highs[s])) if n else None for s, n in zip(slices, counts)],
        }


class Table:
    """Columns over steps that only ever grow, until they are rewound.

    Args:
        names: of the columns; whatever a row holds where they are not known beforehand.
    """

    def __init__(self, capacity: int = CAPACITY, names: tuple[str, ...] | None = None) -> None:
        assert capacity % 2 == 0, "neighbours are merged in pairs"
        self.capacity, self.names = capacity, names
        self.rows_per_bucket = 1
        self.firsts, self.lasts = array("q"), array("q")  # steps
        self.starts, self.ends = array("Q"), array("Q")  # bytes in the journal
        self.rows = array("I")
        self.columns: dict[str, Column] = {}
        self._waiting: list[Mapping[str, Any]] = []  # rows of the newest bucket, not yet counted

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def last_step(self) -> int | None:
        return self.lasts[-1] if self.lasts else None

    def add(self, step: int, values: Mapping[str, Any], start: int = 0, end: int = 0) -> None:
        """Take a row that lies beyond all others; what is not a finite number is left out."""
        if not self.rows or self.rows[-1] >= self.rows_per_bucket:
            self._open_bucket(step, start)
        self.lasts[-1], self.ends[-1] = step, end
        self.rows[-1] += 1
        self._waiting.append(values)

    def _count(self) -> None:
        """Count the rows that wait: together, since one by one takes three times as long."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for name in self.names or dict.fromkeys(name for row in waiting for name in row):
            given: list[Any] = [row.get(name) for row in waiting]
            values = [v for v in given if type(v) in NUMBERS and -LARGEST < v < LARGEST]
            column = self.columns.get(name) or self._new_column(name)
            if values and column:
                column.add(values, len(self.rows) - 1)

    def _new_column(self, name: str) -> Column | None:
        return self.columns.setdefault(name, Column()) if len(self.columns) < COLUMNS else None

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
        """Forget that step and all beyond it.

        Where that cuts through a bucket the whole bucket goes; its place in the journal is
        returned, so that the rows before the cut can be taken again.
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
        """The buckets that touch a range of steps."""
        return range(bisect_left(self.lasts, first), bisect_right(self.firsts, last))

    def window(self, first: int, last: int, points: int) -> dict[str, Any]:
        """At most so many points of a range, each the lowest, mean and highest of its rows.

        Where a point is one row it has only a mean.
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


def short(value: float) -> float:
    """The value in as many digits as a picture can show."""
    return float(f"{value:.6g}")
