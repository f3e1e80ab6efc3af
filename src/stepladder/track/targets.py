"""Parsing the trackers of a run: `tensorboard, wandb, mlflow, prometheus:9400`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from stepladder.errors import PlanError, nearest, raise_all

NAMES = ("tensorboard", "wandb", "mlflow", "prometheus")
FIELD = "run.track"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Target:
    """One tracker to send a run's entries to."""

    name: str
    host: str = LOOPBACK  # of prometheus
    port: int = 0


def parse_targets(words: str | Iterable[str]) -> tuple[Target, ...]:
    """Parse the trackers' names; raises all mistakes at once."""
    given = words.split(",") if isinstance(words, str) else list(words)
    problems: list[PlanError] = []
    found: list[Target] = []
    for word in filter(None, (one.strip() for one in given)):
        try:
            found.append(parse_target(word))
        except PlanError as problem:
            problems.append(problem)
    raise_all(problems)
    return tuple(dict.fromkeys(found))


def parse_target(word: str) -> Target:
    name, colon, where = word.partition(":")
    if name not in NAMES:
        raise PlanError(FIELD, f"'{name}' is not a tracker", nearest(name, NAMES))
    if name != "prometheus":
        if colon:
            raise PlanError(FIELD, f"'{word}': {name} takes nothing after it", f"Write {name}.")
        return Target(name)
    host, _, port = where.rpartition(":")
    if not port.isdecimal() or not port.isascii() or not 0 <= int(port) < 2**16:
        problem = f"'{word}' does not name the port to serve on"
        raise PlanError(FIELD, problem, "Write prometheus:9400, or prometheus:HOST:9400.")
    return Target(name, host or LOOPBACK, int(port))


def import_tracker(module: str) -> Any:
    """Import a tracker's package, which is needed only if that tracker is used."""
    try:
        return import_module(module)
    except ImportError as missing:
        name = module.partition(".")[0] if missing.name is None else missing.name.partition(".")[0]
        problem = f"needs the package '{name}', which is not installed"
        raise PlanError(FIELD, problem, "pip install 'stepladder[track]'") from missing
