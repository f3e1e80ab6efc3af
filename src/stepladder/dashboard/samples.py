"""The pictures and texts that a training loop kept, the newest of each name."""

from __future__ import annotations

from base64 import b64decode
from collections import deque
from typing import Any

MAX_NAMES = 24
KEPT = 4  # of a name, the newest
MAX_BYTES = 2**20  # of a picture, and of a text
PNG = b"\x89PNG\r\n\x1a\n"


class Samples:
    """Bounded, whatever a journal holds."""

    def __init__(self) -> None:
        self.names: dict[str, deque[dict[str, Any]]] = {}

    def add(self, entry: dict[str, Any]) -> None:
        """Take in an entry of kind `sample`; what is neither a picture nor a text is left out."""
        name, step = str(entry.get("name"))[:100], entry.get("step")
        text, picture = entry.get("text"), decode_png(entry.get("png"))
        if type(step) is not int or not (picture or isinstance(text, str)):
            return
        if name not in self.names and len(self.names) >= MAX_NAMES:
            return
        kept = self.names.setdefault(name, deque(maxlen=KEPT))
        while kept and kept[-1]["step"] >= step:  # a resumed run repeats steps
            kept.pop()
        shown = {"text": text[:MAX_BYTES]} if isinstance(text, str) else {"png": picture}
        kept.append({"name": name, "step": step, **shown})

    def listed(self) -> list[dict[str, Any]]:
        """Each sample, newest first within its name: its text, or that it is a picture."""
        return [
            {"name": one["name"], "step": one["step"], "text": one.get("text")}
            for kept in self.names.values()
            for one in reversed(kept)
        ]

    def picture(self, name: str, step: int) -> bytes | None:
        """The PNG file of that name and step, if it is kept."""
        kept = self.names.get(name, ())
        return next((one.get("png") for one in kept if one["step"] == step), None)


def decode_png(text: Any) -> bytes | None:
    """A picture from its base64; None where it is none, or too large."""
    if not isinstance(text, str) or len(text) > MAX_BYTES:
        return None
    try:
        found = b64decode(text, validate=True)
    except ValueError:
        return None
    return found if found.startswith(PNG) else None
