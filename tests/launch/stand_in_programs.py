"""Stand-ins for programs of a cluster that a test machine has not: scripts on the PATH."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def put(folder: Path, monkeypatch, **scripts: str) -> None:
    """Have these programs, and no others of their kind, be found first."""
    folder.mkdir(exist_ok=True)
    for name, body in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
