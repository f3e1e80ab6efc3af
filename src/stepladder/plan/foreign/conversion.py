"""Converting another project's configuration into a plan, with a list of the keys that did not map.

A reader takes the keys it knows one by one; `skip_unread` reports every other key of the file. So a
key may be ignored, but never silently.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepladder.errors import PlanError, raise_all
from stepladder.plan.plan import Plan
from stepladder.plan.typed_values import LARGEST

AUTO = "auto"  # what Hugging Face's integration fills in when it runs

Why = Literal["unsupported", "open", "not needed", "elsewhere"]


@dataclass(frozen=True, slots=True)
class UnmappedKey:
    """A key of the file that the plan cannot express, and why."""

    key: str
    why: Why
    words: str

    def __str__(self) -> str:
        return f"{self.key} ({self.why}): {self.words}"


@dataclass(frozen=True, slots=True)
class ConvertedPlan:
    """The plan converted from another project's file, and the keys that did not map."""

    plan: Plan
    rate: str  # the learning rate's schedule as a recipe writes it; empty where the file has none
    unmapped: tuple[UnmappedKey, ...]

    @property
    def complete(self) -> bool:
        """Whether every key that changes what is computed is in the plan."""
        return not any(one.why == "unsupported" for one in self.unmapped)


@dataclass(slots=True)
class Section:
    """One table of a file; records which keys were used and every value that cannot be read."""

    name: str
    table: Mapping[str, Any]
    unmapped: list[UnmappedKey]
    wrong: list[PlanError] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def key(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def take(self, key: str, otherwise: Any = None) -> Any:
        """The value of a key; `otherwise` where it is absent or "auto"."""
        self.used.add(key)
        value = self.table.get(key)
        if value == AUTO:
            self.skip(key, "open", "filled in by its trainer; say it in the plan")
            return otherwise
        return otherwise if value is None else value

    def refuse(self, key: str, problem: str, remedy: str = "Write one.") -> None:
        """Record a problem; all of them are raised together."""
        self.wrong.append(PlanError(self.key(key), problem, remedy))

    def number(self, key: str) -> int | float | None:
        value = self.take(key)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        self.refuse(key, f"{format_value(value)} is not a number")
        return None

    def count(self, key: str, least: int = 1) -> int | None:
        """A whole number, also where the file writes it as 64.0 or 5e8."""
        value = self.number(key)
        if value is None:
            return None
        if value != value or abs(value) >= LARGEST or value != int(value) or value < least:
            problem = f"{format_value(value)} is not a whole number of {least} or more"
            self.refuse(key, problem)
            return None
        return int(value)

    def word(self, key: str, otherwise: str = "") -> str:
        value = self.take(key, otherwise)
        if not isinstance(value, str):
            self.refuse(key, f"{format_value(value)} is not a word")
            return otherwise
        return value

    def pair(self, key: str) -> tuple[float, float] | None:
        value = self.take(key)
        if value is None:
            return None
        if not (isinstance(value, list) and [type(n) in (int, float) for n in value] == [True] * 2):
            self.refuse(key, f"{format_value(value)} is not two numbers", "Write [0.9, 0.95].")
            return None
        return value[0], value[1]

    def switch(self, key: str, otherwise: bool = False) -> bool:
        value = self.take(key, otherwise)
        words = {"true": True, "false": False, "yes": True, "no": False}
        value = words.get(value.lower(), value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            self.refuse(key, f"{format_value(value)} is neither true nor false")
            return otherwise
        return value

    def section(self, key: str) -> Section:
        value = self.take(key) or {}
        if not isinstance(value, Mapping):
            self.refuse(key, f"{format_value(value)} is not a table")
            value = {}
        return Section(self.key(key), value, self.unmapped, self.wrong)

    def skip(self, key: str, why: Why, words: str) -> None:
        self.unmapped.append(UnmappedKey(self.key(key), why, words))

    def skip_all(self, why: Why, words: str, *keys: str) -> None:
        """Report each of these keys that the file sets."""
        for key in keys:
            if key in self.table:
                self.used.add(key)
                if self.table[key] not in (None, False, "no", "", {}, []):
                    self.skip_unless_off(key, why, words)

    def skip_unless_off(self, key: str, why: Why, words: str) -> None:
        value = self.table[key]
        if isinstance(value, Mapping) and value.get("enabled", True) is False:
            why, words = "not needed", "switched off in the file"
        self.skip(key, why, words)

    def skip_unread(self) -> None:
        """Report every key that no reader used."""
        for key in self.table:
            if key not in self.used:
                self.skip_unless_off(key, "unsupported", "not known here")


def format_value(value: Any) -> str:
    """A value as the file writes it, shortened to fit a line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no int of thousands of digits
        text = "a value too long to write"
    return text if len(text) <= 40 else f"{text[:39]}…"


def zero_word(section: Section, key: str, otherwise: int = 0) -> str:
    """The plan's word for a ZeRO stage."""
    stage = section.number(key)
    stage = otherwise if stage is None else stage
    if stage not in range(4):
        section.refuse(key, f"{stage} is not a stage of ZeRO", "Use 0, 1, 2 or 3.")
    return f"zero{int(stage)}" if stage in range(1, 4) else "ddp"


def is_on_host(section: Section, key: str) -> bool:
    """Whether the key says host memory; NVMe is reported as unsupported."""
    home = section.word(key, "none").lower()
    if home == "nvme":
        section.skip(key, "unsupported", "disks; host memory (cpu) is as far as it goes")
    elif home not in ("none", "cpu"):
        section.refuse(key, f"{home!r} is not a place", "Write none, cpu or nvme.")
    return home == "cpu"


def make_plan(words: list[str], wrong: list[PlanError]) -> Plan:
    """Parse the plan, or raise every value of the file that could not be read."""
    raise_all(wrong)
    return Plan.parse(" ".join(shlex.quote(word) for word in dict.fromkeys(words)))


def as_table(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        problem = f"holds a {type(value).__name__}, not a table of keys"
        raise PlanError(what, problem, "Give its configuration file.")
    return value
