"""Finding data files; a missing path is refused by naming what does exist."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from stepladder.errors import DataError


def existing_path(path: str | os.PathLike[str], field: str) -> Path:
    """The path, after checking that it exists."""
    wanted = Path(path).expanduser()
    if wanted.exists():
        return wanted
    parent = next(parent for parent in wanted.absolute().parents if parent.is_dir())
    missing = wanted.absolute().relative_to(parent).parts[0]
    names = sorted(entry.name for entry in parent.iterdir())
    close = get_close_matches(missing, names, n=1)
    remedy = f"Did you mean '{close[0]}'?" if close else f"It holds {_some(names)}."
    raise DataError(
        field, f"'{path}' does not exist; the nearest folder that does is '{parent}'", remedy
    )


def existing_folder(path: str | os.PathLike[str], field: str) -> Path:
    """The path, after checking that it is a folder."""
    folder = existing_path(path, field)
    if not folder.is_dir():
        raise DataError(field, f"'{path}' is a file", f"Give its folder, '{folder.parent}'.")
    return folder


def listed_file(folder: Path, name: str, field: str) -> Path:
    """A file of the folder that an index names; one that leads out of it is refused.

    An index comes with the data, from anywhere: it may not choose which of this machine's other
    files are read.
    """
    parts = Path(os.path.normpath(name)).parts if name else ()
    if not parts or parts[0] == ".." or os.path.isabs(name):  # links in the folder are its owner's
        raise DataError(
            field,
            f"the index in '{folder}' names '{name}', which is not in that folder",
            "Do not use it, or put the file beside its index.",
        )
    return folder / name


def read_bytes(path: Path, field: str) -> bytes:
    """The whole file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable_data(path, field, error) from error


def unreadable_data(path: Path, field: str, error: Exception) -> DataError:
    """The error for a file that exists and cannot be read."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return DataError(
        field,
        f"'{path}' cannot be read ({reason})",
        "Mend or remove the file, or check its permissions.",
    )


def files_below(folder: Path, suffixes: tuple[str, ...], without: frozenset[str]) -> list[Path]:
    """Files with these suffixes, in one order on every machine, outside folders named `without`."""
    found = []
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in without)
        found += [Path(root, name) for name in names if name.lower().endswith(suffixes)]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _some(names: list[str], most: int = 8) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most]) or "nothing"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
