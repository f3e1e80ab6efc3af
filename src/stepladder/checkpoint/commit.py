"""Committing a checkpoint: the steps that turn a written folder into the run's newest checkpoint.

    run/step-000500/model-00000.safetensors      parameters and buffers that one rank wrote
                    optimizer-00000.safetensors  its optimizer state
                    registered-00000.safetensors its part of what was registered, such as an EMA
                    rank-00000.safetensors       its random number generators
                    manifest.json                the run's state, and where each tensor slice is
                    committed                    SHA-256 of the manifest, written last
    run/latest                                   the name of the newest checkpoint

A checkpoint is written into a hidden folder, flushed to disk with fsync, and renamed once it is
complete. A run killed at any moment therefore leaves the older checkpoints as they were.

The commit marker is always SHA-256, even where files are hashed with BLAKE3, so that every version
and installation can tell an intact manifest from a damaged one.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from stepladder.errors import RecordError

from .best import read_ranking, remove_worse
from .find import list_checkpoints, step_of
from .folder_locks import lock_folder, take_turn
from .hashing import SHA256, hash_bytes
from .integrity import COMMITTED, MANIFEST, read_manifest
from .manifest import Manifest

LATEST = "latest"
KEEP = 2  # complete checkpoints


def checkpoint_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is stored."""
    return root / f"step-{step:06d}"


def commit(partial: Path, final: Path, manifest: Manifest, keep: int = KEEP) -> None:
    """Make a written folder the run's newest checkpoint and delete all but the newest `keep`.

    One that is kept for its value is deleted only once there are enough with better ones.
    """
    text = manifest.to_json()
    write_text(partial / MANIFEST, text)
    write_text(partial / f".{COMMITTED}", hash_bytes(text.encode(), SHA256) + "\n")
    (partial / f".{COMMITTED}").rename(partial / COMMITTED)
    fsync_folder(partial)
    with take_turn(final.parent):
        publish(partial, final)
        remove_old(final.parent, step_of(final), keep)
        remove_worse(final)


def publish(partial: Path, final: Path) -> None:
    """Give a committed folder its name, in place of an older one of the same step."""
    root, replaced = final.parent, final.with_name(f".{final.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():  # a resumed run saves this step again, or the old one was damaged
        final.rename(replaced)
    partial.rename(final)
    write_text(root / f".{LATEST}", final.name + "\n")
    (root / f".{LATEST}").rename(root / LATEST)
    fsync_folder(root)
    with suppress(OSError):  # the parent of a mount point may not be ours to sync
        fsync_folder(root.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_old(root: Path, newest: int, keep: int) -> None:
    """Delete checkpoints older than the last `keep` complete ones; never one newer than `newest`.

    Damaged checkpoints do not count towards `keep`.
    """
    complete = 0
    for path in list_checkpoints(root):
        if path.name.startswith(".") or not 0 <= step_of(path) <= newest:
            continue
        if read_ranking(path) is not None:
            continue
        if complete >= keep:
            shutil.rmtree(path, ignore_errors=True)
        complete += looks_complete(path)


def looks_complete(path: Path) -> bool:
    """Whether the manifest is intact and every file has its size; file contents are not hashed."""
    try:
        files = read_manifest(path).files
        return all((path / name).stat().st_size == written.size for name, written in files.items())
    except (OSError, RecordError):
        return False


def remove_partial(root: Path) -> None:
    """Delete the folders that interrupted saves left behind, not those of saves that go on."""
    with take_turn(root):
        for path in root.glob(".step-*"):
            with suppress(OSError), lock_folder(path, wait_seconds=0) as free:
                if free:
                    shutil.rmtree(path, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a small file and flush it to disk."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that renames in it survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
