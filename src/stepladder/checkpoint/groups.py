"""Checkpoints of several runs that are one: all of them are there, or none is.

    folder/together-000003/generator/step-000012/    a checkpoint as any other
                           critic/step-000060/
                           together.json             the name of each

They are written into a hidden folder, which is renamed once all of them are complete.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from stepladder.errors import RecordError

from .commit import KEEP, fsync_folder, write_text
from .folder_locks import lock_folder, take_turn

PREFIX = "together-"
MEMBERS = "together.json"


def begin_group(root: Path) -> Path:
    """A hidden folder to write the members into; what killed saves left behind is deleted."""
    root.mkdir(parents=True, exist_ok=True)
    with take_turn(root):
        for path in root.glob(f".{PREFIX}*"):
            with suppress(OSError), lock_folder(path, wait_seconds=0) as free:
                if free:
                    shutil.rmtree(path, ignore_errors=True)
        partial = root / f".{PREFIX}{uuid4().hex[:8]}"
        partial.mkdir()
    return partial


def commit_group(partial: Path, members: dict[str, str]) -> Path:
    """Make the written folder the newest group; all but the newest two are deleted.

    Args:
        members: by name the folder of each one's checkpoint.
    """
    root = partial.parent
    write_text(partial / MEMBERS, json.dumps(members))
    fsync_folder(partial)
    with take_turn(root):
        older = list_groups(root)
        number = int(older[0].name.removeprefix(PREFIX)) + 1 if older else 1
        final = root / f"{PREFIX}{number:06d}"
        partial.rename(final)
        fsync_folder(root)
        for path in older[KEEP - 1 :]:
            shutil.rmtree(path, ignore_errors=True)
    return final


def list_groups(root: Path) -> list[Path]:
    """The groups of a folder, newest first."""
    numbered = [
        path for path in root.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit()
    ]
    return sorted(numbered, key=lambda path: int(path.name.removeprefix(PREFIX)), reverse=True)


def read_members(group: Path) -> dict[str, str]:
    """By name the checkpoint of each run in a group."""
    try:
        found = json.loads((group / MEMBERS).read_text())
        return {str(name): str(folder) for name, folder in found.items()}
    except (OSError, ValueError, AttributeError) as damaged:
        problem = f"{group / MEMBERS} cannot be read ({type(damaged).__name__})"
        raise RecordError("checkpoint", problem, "Use an older one.") from damaged
