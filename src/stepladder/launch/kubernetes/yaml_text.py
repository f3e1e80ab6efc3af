"""Manifests as YAML: mappings, lists, words and numbers, which is all that a manifest has.

Written here rather than by a package: what is handed to a cluster needs six rules of YAML, and a
word that could be taken for a number, a date or a `no` is quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")  # words that need no quotes
ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
TAKEN = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def to_yaml(documents: Sequence[Mapping[str, Any]]) -> str:
    """Several documents as one file."""
    return "---\n".join(write(document, "") for document in documents)


def write(value: Any, indent: str) -> str:
    """A mapping or a list, each entry on lines of its own."""
    if isinstance(value, Mapping):
        return "".join(f"{indent}{word(key)}:{entry(item, indent)}" for key, item in value.items())
    return "".join(f"{indent}-{listed(item, indent)}" for item in value)


def entry(item: Any, indent: str) -> str:
    """What stands after a key."""
    if isinstance(item, Mapping) and item:
        return f"\n{write(item, indent + '  ')}"
    if isinstance(item, list | tuple) and item:
        return f"\n{write(item, indent)}"
    if isinstance(item, str) and "\n" in item:
        return literal(item, indent + "  ")
    return f" {scalar(item)}\n"


def listed(item: Any, indent: str) -> str:
    """What stands after a dash: a mapping or a list begins on its line."""
    if isinstance(item, Mapping | list | tuple) and item:
        return f" {write(item, indent + '  ').removeprefix(indent + '  ')}"
    return entry(item, indent)


def literal(text: str, indent: str) -> str:
    """Lines as they are, such as a file's."""
    keep = "+" if text.endswith("\n\n") else "" if text.endswith("\n") else "-"
    if re.search(r"[^\n\x20-\x7e]|\A\s", text):  # what a block would lose, or take for its indent
        return f" {quoted(text)}\n"
    lines = text.removesuffix("\n").split("\n")
    return f" |{keep}\n" + "".join(f"{indent}{line}\n" if line else "\n" for line in lines)


def scalar(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return word(value) if isinstance(value, str) else json.dumps(value)


def word(text: str) -> str:
    """A word, quoted unless it can only be one."""
    safe = PLAIN.fullmatch(text) and text.lower() not in TAKEN
    return text if safe else quoted(text)


def quoted(text: str) -> str:
    """In YAML's own escapes, which for letters beyond 16 bits are not those of JSON."""
    return '"' + "".join(map(letter, text)) + '"'


def letter(one: str) -> str:
    if one in ESCAPED:
        return ESCAPED[one]
    return one if one.isprintable() else f"\\U{ord(one):08X}"
