"""Where this user keeps what was found out about a machine."""

import os
import re
from pathlib import Path


def cache_path(what: str, device: str) -> Path:
    """The file of one kind of finding about one kind of device."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    word = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return Path(cache) / "stepladder" / f"{what}-{word}.json"
