"""Importing packages that only one data format needs, when that format is used.

They are imported by name, so that `stepladder.data` works without them and a missing one is
reported with the format that needs it.
"""

from __future__ import annotations

import shlex
from importlib import import_module
from typing import Any

from stepladder.errors import DataError


def import_optional(module: str, *, field: str, install: str) -> Any:
    """Import the module, or raise with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            field,
            f"needs the package '{module.split('.')[0]}', which is not installed",
            f"Install it: pip install {shlex.quote(install)}",  # brackets are a shell's own
        ) from error
