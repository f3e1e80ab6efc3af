"""Finding the checkpoints of a run, newest first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from stepladder.errors import RecordError

from .integrity import COMMITTED, MANIFEST, permission_denied

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".distcp")


def as_folder(given: object) -> Path:
    """The path that a user named; what is there, another rank may see otherwise."""
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        raise RecordError("folder", f"{given!r} is no path", 'Name a folder, such as "runs/demo".')
    return Path(given)


def list_checkpoints(root: Path) -> list[Path]:
    """The committed checkpoints of a run, newest first; their contents are not verified.

    A run killed between commit and rename leaves a committed checkpoint under its hidden name: it
    counts.
    """
    paths = [path for pattern in ("step-*", ".step-*") for path in root.glob(pattern)]
    # os.path.exists, because Path.exists raises where this user lacks permission.
    return newest_first(path for path in paths if os.path.exists(path / COMMITTED))


def newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (step_of(path), path.name), reverse=True)


def step_of(path: Path) -> int:
    """The step in a checkpoint folder's name, or -1 where there is none."""
    digits = path.name.lstrip(".").removeprefix("step-").partition(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def find_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the checkpoints to try: `folder` itself if it is one, else those in it, newest first.

    A folder is renamed to `step-N` only after its commit. So one without a commit marker was
    damaged later; it is yielded too, for the caller to report.
    """
    try:
        yield from look_in(folder)
    except PermissionError as refused:
        raise permission_denied(refused) from refused


def look_in(folder: Path) -> list[Path]:
    if (folder / MANIFEST).exists() or (folder / COMMITTED).exists():
        return [folder]
    if folder.is_dir():
        os.listdir(folder)  # raises if the folder is unreadable, where glob would find nothing
    steps = {path for path in folder.glob("step-*") if path.is_dir()}
    found = newest_first(steps.union(list_checkpoints(folder)))
    if not found:
        refuse_pickles(folder)
        raise RecordError(
            "checkpoint", f"{folder} holds none", "Name a folder that a run saved to."
        )
    return found


def refuse_pickles(path: Path) -> None:
    """Raise if `path` is or contains a pickle, because loading a pickle can run code."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if file.is_file() and (file.suffix in PICKLES or file.name == ".metadata"):
            raise RecordError(
                "checkpoint",
                f"{file} is a pickle, which can run code when it is loaded",
                "Have whoever made it write its tensors as safetensors.",
            )
