"""A run's checkpoints on the disk: each is whole or it does not count.

    run/step-000500/model-00000.safetensors      parameters and buffers one rank wrote
                    optimizer-00000.safetensors  the state of its optimizer
                    rank-00000.safetensors       its random generators
                    manifest.json                where the run stood, where every number is
                    committed                    the manifest's SHA-256: written last
    run/latest                                   the name of the newest

Everything is written into a folder of another name, forced to the disk, and renamed when the last
byte is there. A run killed at any moment leaves the older checkpoints as they were. Nothing is
pickled, so loading cannot run code.

The marker is SHA-256 wherever it was written: every version and installation can tell a whole
manifest from a damaged one, and so say truly what it lacks to prove the rest.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from stepladder.errors import RecordError, Unproven

from .hashing import SHA256, hash_bytes, hash_files, hashes
from .manifest import Manifest
from .safetensors_file import Written

MANIFEST, COMMITTED, LATEST = "manifest.json", "committed", "latest"
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".distcp")
KEPT = 2  # whole checkpoints that stay


def folder_of(root: Path, step: int) -> Path:
    return root / f"step-{step:06d}"


def commit(partial: Path, final: Path, manifest: Manifest, kept: int = KEPT) -> None:
    """Make a written folder the run's newest checkpoint; older ones beyond `kept` go."""
    text = manifest.to_json()
    write_text(partial / MANIFEST, text)
    write_text(partial / f".{COMMITTED}", hash_bytes(text.encode(), SHA256) + "\n")
    (partial / f".{COMMITTED}").rename(partial / COMMITTED)
    force(partial)
    root, replaced = final.parent, final.with_name(f".{final.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():  # a resumed run came here again, or this one was damaged
        final.rename(replaced)
    partial.rename(final)
    write_text(root / f".{LATEST}", final.name + "\n")
    (root / f".{LATEST}").rename(root / LATEST)
    force(root)
    with suppress(OSError):  # above a mounted disk there is nothing of ours to force
        force(root.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    retire(root, step_of(final), kept)


def retire(root: Path, newest: int, kept: int) -> None:
    """Remove checkpoints older than the last `kept` that look whole; never a newer one's."""
    good = 0
    for path in checkpoints(root):
        if path.name.startswith(".") or not 0 <= step_of(path) <= newest:
            continue
        if good >= kept:
            shutil.rmtree(path, ignore_errors=True)
        good += looks_whole(path)


def looks_whole(path: Path) -> bool:
    """Whether the manifest is the one committed and every file has its size: nothing is hashed."""
    try:
        files = read_manifest(path).files
        return all((path / name).stat().st_size == written.size for name, written in files.items())
    except (OSError, RecordError):
        return False


def clear_partial(root: Path) -> None:
    """Remove what saves that never ended left behind."""
    for path in root.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def checkpoints(root: Path) -> list[Path]:
    """Committed checkpoints, newest first; whether they are still as written is not asked.

    A run that was killed between its commit and the renaming left a whole one under the name it
    was written by: it counts.
    """
    # Not Path's, which raises where this user may not look.
    return newest_first(p for p in under_any_name(root) if os.path.exists(p / COMMITTED))


def under_any_name(root: Path) -> list[Path]:
    return [path for pattern in ("step-*", ".step-*") for path in root.glob(pattern)]


def newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (step_of(path), path.name), reverse=True)


def step_of(path: Path) -> int:
    digits = path.name.lstrip(".").removeprefix("step-").partition(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def read_manifest(path: Path) -> Manifest:
    """The manifest of a committed checkpoint, which is what was committed."""
    try:
        for name in (MANIFEST, COMMITTED):
            if (path / name).exists() and not (path / name).is_file():  # a pipe would have us wait
                raise damaged(path / name, "is not a file")
        text = (path / MANIFEST).read_bytes()
        promised = (path / COMMITTED).read_bytes()
    except PermissionError as refused:
        raise unreadable(refused) from refused
    except (OSError, ValueError) as missing:
        raise damaged(path, f"is not a whole checkpoint ({missing})") from missing
    if f"{hash_bytes(text, SHA256)}\n".encode() != promised:
        raise damaged(path / MANIFEST, "is not what was written")
    return Manifest.from_json(text, path / MANIFEST)


def verify(path: Path) -> Manifest:
    """The manifest of a checkpoint whose every byte is as it was written."""
    manifest = read_manifest(path)
    check_files(path, manifest.files)
    return manifest


def check_files(folder: Path, files: Mapping[str, Written]) -> None:
    """Raise where one of these files is not, to the last bit, what was written."""
    check_provable(folder, files)
    for name, written in files.items():  # first, since it costs nothing
        with named(folder / name):
            size, plain = (folder / name).stat().st_size, (folder / name).is_file()
        if not plain:
            raise damaged(folder / name, "is not a file")
        if size != written.size:
            raise damaged(folder / name, f"has {size} bytes, {written.size} were written")
    asked = [(folder / name, written.hash) for name, written in files.items()]
    with closing(hash_files(asked)) as found:
        for name, written in files.items():
            with named(folder / name):
                digest = next(found)
            if digest != written.digest:
                raise damaged(folder / name, "is not what was written")


def check_provable(folder: Path, files: Mapping[str, Written]) -> None:
    """Refuse what this installation has no hash for; nothing is loaded unproven."""
    for name, written in files.items():
        if written.hash not in hashes():
            raise Unproven(
                "checkpoint",
                f"{folder / name} was hashed by {written.hash}, which is not installed here, so "
                "nobody can tell whether it is as written",
                f"Install it: pip install {written.hash}.",
            )


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Say of which file the disk gave nothing."""
    try:
        yield
    except PermissionError as refused:
        raise unreadable(refused) from refused
    except OSError as missing:
        raise damaged(path, f"cannot be read ({missing.strerror})") from missing


def candidates(folder: Path) -> Iterator[Path]:
    """Checkpoints to try: the one that is named, or those of a run from the newest on.

    A folder is given its name once it is committed: one without its marker was damaged since, and
    is tried so that it is named.
    """
    try:
        yield from look_for(folder)
    except PermissionError as refused:
        raise unreadable(refused) from refused


def look_for(folder: Path) -> list[Path]:
    if (folder / MANIFEST).exists() or (folder / COMMITTED).exists():
        return [folder]
    if folder.is_dir():
        os.listdir(folder)  # raises where it may not be read; a pattern would just find nothing
    named = {path for path in folder.glob("step-*") if path.is_dir()}
    found = newest_first(named.union(checkpoints(folder)))
    if not found:
        refuse_pickles(folder)
        raise RecordError(
            "checkpoint", f"{folder} holds none", "Name a folder that a run saved to."
        )
    return found


def refuse_pickles(path: Path) -> None:
    """Name a file of a kind that runs code when it is loaded, where there is one."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if file.is_file() and (file.suffix in PICKLES or file.name == ".metadata"):
            raise RecordError(
                "checkpoint",
                f"{file} is of a kind that is pickled, which can run code when it is loaded",
                "Have its tensors written as safetensors by whoever made it.",
            )


def write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def force(folder: Path) -> None:
    """Have the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unreadable(refused: PermissionError) -> Unproven:
    """What this user may not read is not damaged: an older one in its place would lose steps."""
    return Unproven(
        "checkpoint",
        f"{refused.filename} may not be read by this user ({refused.strerror})",
        "Have its owner allow it (chmod a+rX), or copy the checkpoint as its owner.",
    )


def damaged(path: Path, problem: str) -> RecordError:
    return RecordError("checkpoint", f"{path} {problem}", "Use an older checkpoint.")
