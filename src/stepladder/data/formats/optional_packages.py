"""Packages that serve one kind of data: looked up when that kind is asked for, never before.

They are found by name rather than by an import statement, so that `stepladder.data` starts without
them and a missing one is a sentence about the data that needs it.
"""

from __future__ import annotations

import shlex
from importlib import import_module
from typing import Any

from stepladder.errors import DataError


def package(module: str, *, field: str, install: str) -> Any:
    """The module, or the command that would bring it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            field,
            f"needs the package '{module.split('.')[0]}', which is not installed",
            f"Install it: pip install {shlex.quote(install)}",  # brackets are a shell's own
        ) from error
