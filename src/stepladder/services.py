"""Services: functions that a package asks for by name, because a package above it answers.

A plan for this very machine wants speeds that are measured by training, and a forecast may rehearse
the program that trains: both are computed above the planner. Nobody imports upwards for that. The
package's root, `stepladder/__init__.py`, registers who answers; who asks knows the name alone, and
the answering package is imported at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PROVIDERS: dict[str, Callable[[], Callable[..., Any]]] = {}


def register(name: str, provider: Callable[[], Callable[..., Any]]) -> None:
    """Have `provider` find the function that answers to this name."""
    PROVIDERS[name] = provider


def service(name: str) -> Callable[..., Any]:
    """The function that answers to this name, whose package is imported now."""
    return PROVIDERS[name]()
