"""Files that a command is to write, looked at before it measures for minutes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from stepladder.errors import RecordError

WRITTEN = ("plot", "out", "output", "save", "certificate")  # options that name a file to write
PICTURES = (
    "eps", "jpeg", "jpg", "pdf", "pgf", "png", "ps", "raw", "rgba", "svg", "svgz", "tif", "tiff",
    "webp",
)  # fmt: skip


def check_outputs(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse now what could not be written later."""
    for action in parser._actions:
        given = getattr(options, action.dest, None)
        if action.option_strings and action.dest in WRITTEN and isinstance(given, (str, Path)):
            check_output(action.dest, Path(given))


def check_output(option: str, path: Path) -> None:
    """Refuse a file that cannot be written, and a picture of no known kind."""
    why = why_not(path)
    kind = path.suffix[1:].lower()
    if not why and option == "plot" and kind and kind not in PICTURES:
        why = f"'.{kind}' is no kind of picture"
    if why:
        example = "loss.png" if option == "plot" else f"./{path.name or option}"
        remedy = f"Name another file, such as {example}."
        raise RecordError(option, f"{path} cannot be written ({why})", remedy)


def why_not(path: Path) -> str:
    """Why a file cannot be written there; empty where it can. Nothing is left behind."""
    if not path.name:
        return "it names no file"
    if path.is_dir():
        return "Is a directory"
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        return f"{folder} is no folder"
    if not os.access(path if path.exists() else folder, os.W_OK):
        return "Permission denied"
    return ""
