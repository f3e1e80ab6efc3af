"""Where this user keeps what was found out about a machine."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path


def cache_path(what: str, device: str) -> Path:
    """The file of one kind of finding about one kind of device."""
    word = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return cache_folder() / "stepladder" / f"{what}-{word}.json"


def cache_folder() -> Path:
    """This user's; of one who has no home, as in many a container, among the temporary files."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"


def replace_whole(path: Path, text: str) -> None:
    """Write a file beside it first."""
    half = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        half.write_text(text)
        os.replace(half, path)
    except OSError:
        with suppress(OSError):
            half.unlink(missing_ok=True)
        raise
