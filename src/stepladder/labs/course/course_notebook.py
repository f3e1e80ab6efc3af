"""How far a learner is in the course: answers, kept beside the results of the labs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.labs.catalogue.courses import find_lab
from stepladder.labs.notebook import Book, LabNotebook, default_path, read_pages, write_pages

from .grade_answer import Graded
from .unit import Unit


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a unit is done."""

    labs_done: int
    labs: int
    items_done: int
    items: int

    @property
    def done(self) -> bool:
        return self.labs_done == self.labs and self.items_done == self.items

    @property
    def begun(self) -> bool:
        return bool(self.labs_done or self.items_done)


@dataclass
class CourseNotebook:
    """The learner's file of answers, by unit and item, beside the one of labs."""

    path: Path = field(default_factory=lambda: default_path("course.json"))
    labs: LabNotebook = field(default_factory=LabNotebook)
    answers: Book = field(init=False)

    def __post_init__(self) -> None:
        self.answers = read_pages(self.path)

    def note(self, unit: Unit, graded: Graded) -> None:
        """Keep an answer; a wrong one does not take back a right one of before."""
        page = self.answers.setdefault(unit.name, {})
        before = self.answer(unit, graded.item)
        entry = {"given": graded.given, "passed": graded.passed}
        if before.get("passed") and not graded.passed:
            entry = {"given": before.get("given"), "passed": True}
        page[graded.item] = {**entry, "tries": before.get("tries", 0) + 1}
        self.save()

    def answer(self, unit: Unit, item: str) -> dict[str, Any]:
        """What is known of an answer: given, passed, tries; nothing before the first."""
        found = self.answers.get(unit.name, {}).get(item)
        return found if isinstance(found, dict) else {}

    def progress(self, unit: Unit) -> Progress:
        done = [self.lab_done(name) for name in unit.labs]
        passed = [bool(self.answer(unit, item.name).get("passed")) for item in unit.checklist]
        return Progress(sum(done), len(done), sum(passed), len(passed))

    def lab_done(self, name: str) -> bool:
        return self.labs.progress(find_lab(name)) == "done"

    def save(self) -> None:
        write_pages(self.path, self.answers, "course")
