"""A run to be started on other machines: the command of each, and the resources it needs.

Every place is asked for the same: one command a machine, which is the launcher of that machine's
ranks, and an address where these launchers meet. So a run behaves the same wherever it runs: ranks
that are lost start again, a notice saves and ends with 143, each rank's words are in the run's
folder.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from stepladder.errors import PlanError

MIB = 2**20
UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}
MARGIN_SECONDS = 30  # beyond run.grace_seconds, before a scheduler ends what is left
LONGEST_NAME = 48  # Kubernetes adds its own to it, and has 63


@dataclass(frozen=True, slots=True)
class Resources:
    """What one machine of a run is to have."""

    gpus: int = 0
    cpus: int = 0  # 0: one for each rank
    memory_bytes: int = 0  # 0: whatever the place gives


@dataclass(frozen=True, slots=True)
class Request:
    """What a place is given: the command of a machine, how many of them, where."""

    words: tuple[str, ...]  # of one machine's launcher after `python`, but for where they meet
    rank_words: tuple[str, ...]  # of one rank after `python`, for a place that starts ranks itself
    folder: Path  # the run's, which every machine sees
    directory: Path  # where the commands are started
    python: str
    least: int = 1  # machines below which nobody trains
    most: int = 1
    ranks: int = 1  # of one machine
    restarts: int = 3
    grace_seconds: int = 30
    resources: Resources = field(default_factory=Resources)

    @property
    def name(self) -> str:
        """The run's, in letters that every scheduler takes."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.folder.name.lower()).strip("-")
        named = plain if plain[:1].isalpha() else f"run-{plain}"
        return named[:LONGEST_NAME].strip("-")

    @property
    def cpus(self) -> int:
        return self.resources.cpus or self.ranks

    @property
    def notice_seconds(self) -> int:
        """How long before its end a run must hear of it."""
        return self.grace_seconds + MARGIN_SECONDS

    def line(self, *more: str) -> str:
        """The machine's command for a shell; `more` is written as it stands."""
        return " ".join([shlex.join([self.python, *self.words]), *more])

    def meeting(self, nodes: str, rendezvous: str) -> tuple[str, ...]:
        """The words that have machines meet; none for one that is alone."""
        return () if self.most == 1 else ("--nodes", nodes, "--rendezvous", rendezvous)

    @property
    def nodes(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


def read_words(name: str, text: str) -> list[str]:
    """Words as a shell reads them, quotes and all."""
    try:
        return shlex.split(text)
    except ValueError as odd:
        problem = f"{text!r} cannot be read ({str(odd).lower()})"
        raise PlanError(name, problem, "Close every quote.") from odd


def read_bytes(name: str, text: str) -> int:
    """Bytes of `64G`, `64GiB` or `64Gi`, which all mean the same to the schedulers."""
    found = re.fullmatch(r"(\d{1,6})\s*([MGT])(i?B?)", text)
    if not found or not int(found[1]):
        raise PlanError(name, f"'{text}' is not an amount of memory", f"Write --{name} 64GiB.")
    return int(found[1]) * UNITS[found[2]]
