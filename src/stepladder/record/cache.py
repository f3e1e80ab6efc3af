"""Where this user keeps what was found out about a machine."""

import os
import re
import tempfile
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
