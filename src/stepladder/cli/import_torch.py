"""How a command loads torch: without Python looking for garbage in it, while loading and after.

Python's collector walks everything that is loaded, several times while it is loaded and twice at
the end of the process: a quarter of the time that a rank takes to start and to leave. What is
loaded stays to the end anyway.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

OURS: list[str] = []  # where it was a command that loaded torch, and not a notebook or a test


@contextmanager
def loading() -> Iterator[None]:
    """Block in which a command imports what it needs; nothing where torch is somebody else's."""
    if not gc.isenabled() or ("torch" in sys.modules and not OURS):
        yield
        return
    gc.collect()  # what is garbage by now would be kept too
    gc.disable()
    try:
        yield
    finally:
        OURS[:] = ["torch"] if "torch" in sys.modules else []
        gc.freeze()
        gc.enable()
