"""What comes of another project's configuration: a plan, and every key that is not in it, by name.

A file is read by asking for its keys one by one; what nobody asked for is told as unknown. So a key
can be left behind, but not without a word.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepladder.errors import PlanError

from .plan import Plan

AUTO = "auto"  # what Hugging Face's integration fills in when it runs

Why = Literal["unsupported", "open", "not needed", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Left:
    """A key whose meaning is not in the plan."""

    key: str
    why: Why
    words: str

    def __str__(self) -> str:
        return f"{self.key} ({self.why}): {self.words}"


@dataclass(frozen=True, slots=True)
class Carried:
    """A plan from another project's file."""

    plan: Plan
    rate: str  # the learning rate's schedule as a recipe writes it; empty where the file has none
    left: tuple[Left, ...]

    @property
    def whole(self) -> bool:
        """Whether everything that changes what is computed came along."""
        return not any(one.why == "unsupported" for one in self.left)


@dataclass(slots=True)
class Section:
    """One table of a file; remembers what was asked for."""

    name: str
    table: Mapping[str, Any]
    left: list[Left]
    asked: set[str] = field(default_factory=set)

    def key(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def take(self, key: str, otherwise: Any = None) -> Any:
        """A value; `otherwise` where it is absent or left to be filled in."""
        self.asked.add(key)
        value = self.table.get(key, otherwise)
        if value == AUTO:
            self.leave(key, "open", "filled in by its trainer; say it in the plan")
            return otherwise
        return value

    def number(self, key: str) -> int | float | None:
        value = self.take(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise PlanError(self.key(key), f"{value!r} is not a number", "Write one.")
        return value

    def pair(self, key: str) -> tuple[float, float] | None:
        value = self.take(key)
        if value is None:
            return None
        if not (isinstance(value, list) and [type(n) in (int, float) for n in value] == [True] * 2):
            problem = f"{value!r} is not two numbers"
            raise PlanError(self.key(key), problem, "Write [0.9, 0.95].")
        return value[0], value[1]

    def switch(self, key: str, otherwise: bool = False) -> bool:
        value = self.take(key, otherwise)
        words = {"true": True, "false": False, "yes": True, "no": False}
        value = words.get(value.lower(), value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise PlanError(self.key(key), f"{value!r} is neither true nor false", "Write one.")
        return value

    def section(self, key: str) -> Section:
        value = self.take(key) or {}
        if not isinstance(value, Mapping):
            raise PlanError(self.key(key), f"{value!r} is not a table", "Write one.")
        return Section(self.key(key), value, self.left)

    def leave(self, key: str, why: Why, words: str) -> None:
        self.left.append(Left(self.key(key), why, words))

    def leave_all(self, why: Why, words: str, *keys: str) -> None:
        """Tell of each of these that is in the file and says something."""
        for key in keys:
            if key in self.table:
                self.asked.add(key)
                if self.table[key] not in (None, False, "no", "", {}, []):
                    self.leave(key, why, words)

    def rest(self) -> None:
        """Tell of every key nobody asked for."""
        for key in self.table:
            if key not in self.asked:
                self.leave(str(key), "unsupported", "not known here")


def data_word(section: Section, key: str) -> str:
    """The word for a stage of ZeRO."""
    stage = section.number(key) or 0
    if stage not in range(4):
        raise PlanError(section.key(key), f"{stage} is not a stage of ZeRO", "Use 0, 1, 2 or 3.")
    return f"zero{int(stage)}" if stage else "ddp"


def make_plan(words: Iterator[str] | list[str]) -> Plan:
    return Plan.parse(" ".join(shlex.quote(word) for word in words))


def as_table(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        problem = f"holds a {type(value).__name__}, not a table of keys"
        raise PlanError(what, problem, "Give its configuration file.")
    return value
