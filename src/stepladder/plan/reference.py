"""A name in the user's own code: `file.py:name`, or `package.module:name`."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from dataclasses import dataclass, replace

IDENTIFIER = r"[^\W\d]\w*"
FILE = re.compile(rf"(?P<place>.*\.py):(?P<name>{IDENTIFIER})")
MODULE = re.compile(rf"(?P<place>{IDENTIFIER}(\.{IDENTIFIER})*):(?P<name>{IDENTIFIER})")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where something of the user's own is: a file or a module, and the name in it."""

    place: str
    name: str

    @classmethod
    def parse(cls, text: str, taken: Container[str] = ()) -> Reference | None:
        """The reference that a text is, if it is one.

        Args:
            taken: words that mean something else in front of a colon, as `llama` does in a shape.
        """
        found = FILE.fullmatch(text) or MODULE.fullmatch(text)
        return cls(found["place"], found["name"]) if found and found["place"] not in taken else None

    @property
    def is_file(self) -> bool:
        return self.place.endswith(".py")

    def absolute(self) -> Reference:
        """The same for a process in another folder."""
        return replace(self, place=os.path.abspath(self.place)) if self.is_file else self

    def beside(self, name: str) -> Reference:
        """Another name in the same file or module."""
        return replace(self, name=name)

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"
