"""What all our passes over compiled graphs share: caution, and the key of the compiler's cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from stepladder.seam.inductor import GraphPass

Given = ParamSpec("Given")
Found = TypeVar("Found")
PACKAGE = Path(__file__).parents[2]
SOURCES = ("kernels", "seam")  # packages whose code a pass or an operator of ours runs


class KernelPass(GraphPass):
    """A pass that changes what it recognises and leaves everything else in the graph alone."""

    def uuid(self) -> Any:
        """For the compiler's cache: compiled code is used again while no source changes."""
        key = source_key(PACKAGE)
        return key and f"{type(self).__name__} {key}"


@cache
def source_key(package: Path) -> str:
    """A hash of all code that a pass depends on; empty, and nothing is cached, where there is no
    source to read."""
    files = sorted(path for name in SOURCES for path in (package / name).rglob("*.py"))
    total = sha256()
    for path in files:
        total.update(f"{path.relative_to(package)} {sha256(path.read_bytes()).digest()!r}".encode())
    return total.hexdigest() if files else ""


def recognising(match: Callable[Given, Found]) -> Callable[Given, Found | None]:
    """A question about a graph that is answered with None where a node is not as expected.

    Graphs hold what any module does, written by any version of torch: a pattern that was not
    foreseen must cost the gain, not the run.
    """

    @wraps(match)
    def asked(*given: Given.args, **named: Given.kwargs) -> Found | None:
        try:
            return match(*given, **named)
        except Exception:
            return None

    return asked
