"""A value as a notebook shows it: its title and its numbers in a small table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """The table as HTML, in the notebook's own style; what it is given is only text."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<table><caption>{escape(title)}</caption>"
        + (f"<thead><tr>{top}</tr></thead>" if top else "")
        + f"<tbody>{body}</tbody></table>"
    )
