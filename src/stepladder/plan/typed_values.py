"""Strict parsing of typed values: whatever is accepted can be written back unchanged.

Python's own `int` and `float` take digits of every alphabet and refuse numbers of thousands of
digits with an error of their own; file systems and TOML refuse NUL and half a surrogate pair. All
of that is settled here, once, before a value reaches a plan or a recipe.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from stepladder.errors import nearest

LARGEST = 2**53  # beyond it a float no longer holds every whole number


def whole(value: str | int) -> int | None:
    """The whole number a text is; None where it is none, or too large to compute with."""
    if isinstance(value, str) and not value.isascii():
        return None
    try:
        number = int(value)
    except ValueError:
        return None
    return number if abs(number) < LARGEST else None


def real(value: str | int | float) -> float | None:
    """The finite number a text is, or None."""
    if isinstance(value, str) and not value.isascii():
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def writable(text: str) -> bool:
    """Whether a file can hold this text and a file system this name."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def nearest_word(word: str, choices: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """The remedy for a word that is none of ours: the one that means the same, or is closest.

    Args:
        elsewhere: words of other libraries, in small letters, and ours.
    """
    small = word.lower()
    ours = small if small in (known := list(choices)) else elsewhere.get(small.replace("-", "_"))
    return f"Did you mean '{ours}'?" if ours else nearest(word, known)


def word_of(value: Any) -> str:
    """A value of a TOML table as the word one would type for it."""
    try:
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, list | tuple):
            return ",".join(map(word_of, value))
        return "a table" if isinstance(value, Mapping) else str(value)
    except (ValueError, RecursionError):  # an int of thousands of digits has no text
        return f"{type(value).__name__}…"


def toml_value(value: Any) -> str:
    """A value as TOML writes it. JSON's strings are TOML's but for escapes only one of them has."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def convert(value: Any, kind: type) -> Any:
    """A TOML or command-line value as the field's type; nothing is rounded or guessed."""
    if kind is bool:
        if isinstance(value, bool) or value in ("true", "false", "on", "off"):
            return value in (True, "true", "on")
        raise ValueError
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    if kind is str and writable(text := word_of(value)):
        return text
    if kind is float and (number := real(value)) is not None:
        return number
    if kind is int and not isinstance(value, float) and (count := whole(value)) is not None:
        return count
    raise ValueError
