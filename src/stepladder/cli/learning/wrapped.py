"""Sentences as wide as the terminal, and no wider than one reads with ease."""

from __future__ import annotations

import shutil
import textwrap

WIDEST = 100  # also where there is no terminal


def wrapped(text: str, first: str = "", rest: str | None = None) -> str:
    """The text in lines that begin with `first`, then with `rest` (as far in as the first)."""
    width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    after = " " * len(first) if rest is None else rest
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=after,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
