"""The learner's file of a lab: where it is looked for, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.errors import RecordError

if TYPE_CHECKING:
    from stepladder.labs.lab import Lab


def learner_file(lab: Lab, named: Path | None) -> Path:
    """The file that is named; else the adapter in the working folder, else the starter's file."""
    places = [named] if named else [Path(f"{lab.stem}_adapter.py"), Path(f"{lab.stem}.py")]
    for path in places:
        if path.is_file():
            return path
    raise RecordError(
        "file", f"{places[-1]} is not here", f"'stepladder lab start {lab.name}' writes it."
    )


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Write a file that is not there yet, unless it may be overwritten."""
    if path.exists() and not force:
        raise RecordError(
            "file", f"{path} is there already", "--force overwrites it; or name another file."
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as refused:
        raise RecordError(
            "file", f"{path} cannot be written ({refused.strerror})", "Name another file."
        ) from refused
