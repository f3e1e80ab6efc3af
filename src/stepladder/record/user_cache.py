"""The user's cache folder, for measurements of a machine."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path


def cache_path(what: str, device: str) -> Path:
    """The cache file of one kind of measurement for one kind of device."""
    word = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return cache_folder() / "stepladder" / f"{what}-{word}.json"


def cache_folder() -> Path:
    """The user's cache folder; a temporary folder for a user without home, as in containers."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary file next to `path`, then rename it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
