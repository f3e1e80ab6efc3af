"""How commands show things: tables, JSON, numbers with their units.

Rich is imported when a table is drawn, not before: `--help` and `--json` do without it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar

GIB = 2**30
SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
Item = TypeVar("Item")


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    typed: Sequence[str] = (),
) -> None:
    """Draw a table; numbers to the right, words to the left.

    Args:
        typed: columns whose words people type again: they are never broken into lines.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        title=Text(title) if title else None,
        box=SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
    )
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) or row[index] is None for row in rows)
        whole = max((len(cell(row[index])) for row in rows), default=0)
        drawn.add_column(
            Text(column), justify="right" if rows and numeric else "left", overflow="fold",
            min_width=whole if column in typed else None,
        )  # fmt: skip
    for row in rows:
        drawn.add_row(*(Text(cell(value)) for value in row))  # Text: a [ is only a bracket
    # A pipe has no width: give it room rather than fold every line at 80.
    screen = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    least = drawn.__rich_measure__(screen, screen.options.update(max_width=10_000)).minimum
    screen.width = max(screen.width, least)
    screen.print(drawn)


def cell(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return str(value)


def digits(value: float, places: int = 3) -> str:
    """A number with so many digits, or all in front of the point, and never as 4.07e+03."""
    return f"{value:,.0f}" if abs(value) >= 10**places - 0.5 else f"{value:,.{places}g}"


def size(num_bytes: float) -> str:
    """Bytes in the largest unit of which there is one at least."""
    unit, name = next((each for each in SIZES if abs(num_bytes) >= each[0]), (1, "B"))
    return f"{digits(num_bytes / unit)} {name}"


def signed_percent(share: float) -> str:
    """How far a number is off; nothing is 0.0%, and neither more nor less."""
    text = f"{share:+.1%}"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterable[Item]:
    """The items, with a bar on a terminal while they are made."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, what, total=total, console=Console(stderr=True), transient=True)


def as_json(value: Any) -> None:
    """Print a value, dataclasses included, as JSON."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """The value in words JSON has; a number it has no word for becomes a string."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    known = value is None or isinstance(value, str | int)
    finite = isinstance(value, float) and math.isfinite(value)
    return value if known or finite else str(value)


def gib(num_bytes: float | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / GIB:.2f} GiB"


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"
