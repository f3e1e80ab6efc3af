"""Finding the token shards that a path, a folder or a glob pattern names, in a fixed order."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepladder.errors import DataError

from .data_files import existing_path, listed_file, unreadable_data

SHARD_SUFFIXES = (".bin", ".npy", ".parquet", ".arrow", ".feather")
MDS_INDEX, SAVED, SAVED_SPLITS = "index.json", "state.json", "dataset_dict.json"
FIELD = "token shards"
VALIDATION_NAMES = ("validation", "valid", "dev", "eval", "test")  # of splits, best first

PathName = str | os.PathLike[str]


def find_shards(shards: PathName | Sequence[PathName]) -> list[Path]:
    """All shard files; raises if there are none."""
    several = [shards] if isinstance(shards, str | os.PathLike) else list(shards)
    if not several:
        raise DataError(FIELD, "no file was given", "Name a file, a folder or a pattern.")
    return [path for one in several for path in _find(os.fspath(one))]


def holds_shards(folder: Path) -> bool:
    """Whether a folder contains token shards."""
    try:
        return bool(_in_folder(folder))
    except DataError:
        return True  # it does, and opening it will report what is wrong


def saved_splits(folder: Path) -> tuple[Path, Path] | None:
    """The training and validation splits of a saved `DatasetDict` that has both."""
    if not (folder / SAVED_SPLITS).is_file():
        return None
    named = _read(folder / SAVED_SPLITS).get("splits", [])
    held = [name for name in VALIDATION_NAMES if name in named]
    return (folder / "train", folder / held[0]) if "train" in named and held else None


def _find(name: str) -> list[Path]:
    path = Path(name).expanduser()
    if glob.has_magic(name) and not path.exists():
        found = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        found = [match for match in found if match.suffix != ".idx"]  # they come with their .bin
        if not found:
            raise DataError(FIELD, f"no file matches '{name}'", "Check the pattern's folder.")
        return found
    path = existing_path(path, FIELD)
    if not path.is_dir():
        return [path]
    found = _in_folder(path)
    if not found:
        raise DataError(
            FIELD,
            f"'{path}' holds no file ending in {', '.join(SHARD_SUFFIXES)}",
            "Name the folder the shards lie in.",
        )
    return found


def _in_folder(folder: Path) -> list[Path]:
    """The shards of a folder: those its index lists, or all by name."""
    if (folder / SAVED_SPLITS).exists():
        splits = _read(folder / SAVED_SPLITS).get("splits", [])
        raise DataError(
            FIELD,
            f"'{folder}' holds the parts {', '.join(map(str, splits))}",
            f"Name one, such as '{folder / str(splits[0])}'." if splits else "Name one of them.",
        )
    if (folder / SAVED).exists():
        return _saved(folder, _read(folder / SAVED))
    if (folder / MDS_INDEX).exists() and "shards" in _read(folder / MDS_INDEX):
        return [folder / MDS_INDEX]
    there = sorted(entry for entry in folder.iterdir() if entry.is_file())
    for index in there:
        if index.suffix == ".idx":
            existing_path(index.with_suffix(".bin"), "token file")
    return [entry for entry in there if entry.suffix in SHARD_SUFFIXES]


def _saved(folder: Path, state: dict[str, Any]) -> list[Path]:
    """The files of a dataset that `save_to_disk` wrote, in its order."""
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataError(
            FIELD,
            f"'{folder}' was saved with rows chosen or shuffled by a list beside the table",
            "Save it again after dataset.flatten_indices().",
        )
    names = [str(file["filename"]) for file in state.get("_data_files", [])]
    return [existing_path(listed_file(folder, name, FIELD), FIELD) for name in names]


def _read(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise unreadable_data(path, FIELD, error) from error
    return held if isinstance(held, dict) else {}
