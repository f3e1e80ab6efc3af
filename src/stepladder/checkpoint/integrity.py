"""Verifying a checkpoint: its manifest and files are, to the last bit, what was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from stepladder.errors import RecordError, Unproven

from .hashing import SHA256, available_hashes, hash_bytes, hash_files
from .manifest import Manifest
from .safetensors_file import FileDigest

MANIFEST, COMMITTED = "manifest.json", "committed"


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest and check it against the commit marker."""
    try:
        for name in (MANIFEST, COMMITTED):
            if (path / name).exists() and not (path / name).is_file():  # reading a pipe would block
                raise damaged(path / name, "is not a file")
        text = (path / MANIFEST).read_bytes()
        marker = (path / COMMITTED).read_bytes()
    except PermissionError as refused:
        raise permission_denied(refused) from refused
    except (OSError, ValueError) as missing:
        raise damaged(path, f"is not a complete checkpoint ({missing})") from missing
    if f"{hash_bytes(text, SHA256)}\n".encode() != marker:
        raise damaged(path / MANIFEST, "is not what was written")
    return Manifest.from_json(text, path / MANIFEST)


def verify_checkpoint(path: Path) -> Manifest:
    """Check every byte of a checkpoint against its recorded hash and return its manifest."""
    manifest = read_manifest(path)
    check_files(path, manifest.files)
    check_complete(path, manifest)
    return manifest


def check_complete(path: Path, manifest: Manifest) -> None:
    """Raise if the slices of any tensor do not make up all of it."""
    for name in manifest.incomplete():
        raise damaged(path, f"holds only part of '{name}', or some of it twice")


def check_files(folder: Path, files: Mapping[str, FileDigest]) -> None:
    """Raise if the size or the hash of any of these files is not what was recorded."""
    require_hashes(folder, files)
    for name, written in files.items():  # sizes first, since they cost nothing
        with translate_os_errors(folder / name):
            size, is_file = (folder / name).stat().st_size, (folder / name).is_file()
        if not is_file:
            raise damaged(folder / name, "is not a file")
        if size != written.size:
            raise damaged(folder / name, f"has {size} bytes, {written.size} were written")
    with closing(hash_files([(folder / name, w.hash) for name, w in files.items()])) as digests:
        for name, written in files.items():
            with translate_os_errors(folder / name):
                digest = next(digests)
            if digest != written.digest:
                raise damaged(folder / name, "is not what was written")


def require_hashes(folder: Path, files: Mapping[str, FileDigest]) -> None:
    """Raise if a file's hash algorithm is not installed: nothing is loaded unverified."""
    for name, written in files.items():
        if written.hash not in available_hashes():
            raise Unproven(
                "checkpoint",
                f"{folder / name} was hashed by {written.hash}, which is not installed here, so "
                "nobody can tell whether it is as written",
                f"Install it: pip install {written.hash}.",
            )


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Raise an error that names the file in place of an OSError."""
    try:
        yield
    except PermissionError as refused:
        raise permission_denied(refused) from refused
    except OSError as missing:
        raise damaged(path, f"cannot be read ({missing.strerror})") from missing


def permission_denied(refused: PermissionError) -> Unproven:
    """A file this user may not read is not damaged: falling back to an older one loses steps."""
    return Unproven(
        "checkpoint",
        f"{refused.filename} may not be read by this user ({refused.strerror})",
        "Have its owner allow it (chmod a+rX), or copy the checkpoint as its owner.",
    )


def damaged(path: Path, problem: str) -> RecordError:
    return RecordError("checkpoint", f"{path} {problem}", "Use an older checkpoint.")
