"""Private names of torch by their path, looked up when first used; one that is gone is refused.

Every name stands in the table of names.py, so nothing private is used that is not listed there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from stepladder.errors import UnsupportedTorch

from .names import BY_PATH

# A plain dictionary: code that torch.compile traces may read a name that was found before.
FOUND: dict[str, Any] = {}


def find(path: str) -> Any:
    """What stands under a listed path, or the named refusal of the feature that needs it."""
    if path in FOUND:
        return FOUND[path]
    name = BY_PATH[path]
    try:
        FOUND[path] = reach(path)
    except (AttributeError, ImportError) as gone:
        raise UnsupportedTorch(
            name.field,
            f"torch {torch.__version__} has no {path}, which {name.feature} needs",
            name.remedy,
        ) from gone
    return FOUND[path]


def has(path: str) -> bool:
    """Whether this torch has a listed name."""
    if path in FOUND:
        return True
    assert path in BY_PATH, path
    try:
        FOUND[path] = reach(path)
    except (AttributeError, ImportError):
        return False
    return True


def reach(path: str) -> Any:
    """Walk to a name: modules are imported as far as there are any, the rest are attributes."""
    first, *rest = path.split(".")
    here, module = import_module(first), first
    for word in rest:
        if not hasattr(here, word):
            import_module(f"{module}.{word}")
        here, module = getattr(here, word), f"{module}.{word}"
    return here
