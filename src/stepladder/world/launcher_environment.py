"""This process's rank, read from the environment variables that torchrun or a scheduler sets.

torchrun sets all of the variables, a plain `python train.py` none of them. If only some are set, a
launcher script forgot one, and the run would hang at its first collective: it is refused instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from stepladder.errors import WorldError

REQUIRED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """This process's rank, the number of ranks, and both within this machine."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0  # among the processes of this machine
    local_ranks: int = 1
    launched: bool = False  # by torchrun or a scheduler, rather than alone

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Place:
        given = [name for name in REQUIRED if name in environ]
        if not given:
            return cls()
        missing = [name for name in REQUIRED if name not in environ]
        if missing:
            raise WorldError(
                "environment",
                f"{', '.join(missing)} missing while {', '.join(given)} are set",
                "Start with torchrun, which sets all of them, or unset them to run alone.",
            )
        number(environ, "MASTER_PORT")
        rank, num_ranks = index_of(environ, "RANK", "WORLD_SIZE")
        local = "LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in environ else "WORLD_SIZE"
        local_rank, local_ranks = index_of(environ, "LOCAL_RANK", local)
        return cls(rank, num_ranks, local_rank, local_ranks, launched=True)


def index_of(environ: Mapping[str, str], index: str, size: str) -> tuple[int, int]:
    """Read a rank and the number of ranks, and check that the rank is smaller."""
    position, positions = number(environ, index), number(environ, size)
    if position >= positions:
        raise WorldError(
            index,
            f"{position} is not below {size}={positions}",
            "Ranks count from 0. Start with torchrun, which sets both.",
        )
    return position, positions


def number(environ: Mapping[str, str], name: str) -> int:
    value = environ[name]
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise WorldError(name, f"'{value}' is not a number", "Start with torchrun, which sets it.")
    return int(value)
