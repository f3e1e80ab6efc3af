"""A unit of the course and what it is made of, as values. No torch here.

A question holds no right answer: it holds the function that computes it, with the planner and the
device table as they are when it is graded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Answer = float | str


@dataclass(frozen=True, slots=True)
class Trap:
    """A wrong answer that sounds right, and what is wrong with it."""

    value: Callable[[], Answer]
    says: str


@dataclass(frozen=True, slots=True)
class Question:
    """One "ready when you can": a number, or one of several words."""

    name: str  # as typed in --answer NAME=VALUE
    ask: str
    right: Callable[[], Answer]
    unit: str = ""  # what the number counts; it may be typed behind it
    within: float = 0.02  # the share by which a number may be off
    choices: tuple[str, ...] = ()
    traps: tuple[Trap, ...] = ()
    shown_by: str = ""  # a command that leads to the answer


@dataclass(frozen=True, slots=True)
class HandIn:
    """One "ready when you can" that is a folder of the learner's own."""

    name: str
    ask: str
    problem: Callable[[str], str]  # what is wrong with the folder at this path; nothing if right
    shown_by: str = ""


Item = Question | HandIn


@dataclass(frozen=True, slots=True)
class Exercise:
    """Something to do: a lab, a command, or both, and the page to read about it."""

    about: str
    lab: str = ""
    command: str = ""
    page: str = ""  # of docs
    bonus: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    name: str  # as typed
    title: str
    goal: str
    hours: float
    exercises: tuple[Exercise, ...]
    takeaways: tuple[str, ...]
    checklist: tuple[Item, ...]

    @property
    def labs(self) -> tuple[str, ...]:
        """What has to pass for the unit to be done."""
        return distinct(exercise.lab for exercise in self.exercises if not exercise.bonus)

    @property
    def bonus_labs(self) -> tuple[str, ...]:
        return distinct(exercise.lab for exercise in self.exercises if exercise.bonus)

    @property
    def commands(self) -> tuple[str, ...]:
        return distinct(exercise.command for exercise in self.exercises)

    @property
    def reading(self) -> tuple[str, ...]:
        return distinct(exercise.page for exercise in self.exercises)


@dataclass(frozen=True, slots=True)
class CoursePart:
    title: str
    units: tuple[Unit, ...]


def distinct(words: Iterable[str]) -> tuple[str, ...]:
    """Those that are not empty, each once, in their order."""
    return tuple(dict.fromkeys(word for word in words if word))
