"""What a learner has done so far, kept on this machine: checks, predictions, hints, races.

A part counts as finished when its check passes: what it does counts, not how it looks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError
from stepladder.record.user_cache import write_atomically

from .grading.finding import Finding
from .grading.race import RaceResult
from .lab import Lab
from .lesson_text import question

Book = dict[str, dict[str, Any]]
OURS = "stepladder"  # whose solution the course's own is


@dataclass
class LabNotebook:
    """The learner's file of results, by lab."""

    path: Path = field(default_factory=lambda: default_path())
    pages: Book = field(init=False)

    def __post_init__(self) -> None:
        self.pages = read_pages(self.path)

    def page(self, lab: Lab) -> dict[str, Any]:
        return self.pages.setdefault(lab.name, {})

    def save(self) -> None:
        write_pages(self.path, self.pages, "lab")

    def note_check(self, lab: Lab, findings: Sequence[Finding]) -> None:
        """Keep how many checks a file passed; fewer than before replaces more."""
        done = sum(finding.passed for finding in findings)
        self.page(lab).update(passed=done, of=len(findings))
        self.save()

    def predict(self, lab: Lab, value: float) -> None:
        """Keep a number that is said before it is measured."""
        if "measured" in self.page(lab):
            problem = f"{lab.name} was measured before: {self.page(lab)['measured']:,.6g}"
            raise RecordError("predict", problem, "Predict another lab, before 'lab run' shows it.")
        self.page(lab)["predicted"] = value
        self.save()

    def note_measured(self, lab: Lab, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep the number that was to be predicted."""
        value = question(lab.lesson.read_text(encoding="utf-8")).answer(rows)
        if value is not None:
            self.page(lab)["measured"] = value
            self.save()

    def note_race(self, lab: Lab, who: str, found: RaceResult) -> None:
        """Keep what a solution cost; another race under the same name replaces it."""
        error = None if who == OURS else self.prediction_error(lab)
        entry = {"seconds": found.seconds, "bytes": found.bytes, "error": error}
        self.page(lab).setdefault("races", {})[who] = entry
        self.save()

    def board(self, lab: Lab, *, by: str) -> list[dict[str, Any]]:
        """All solutions that were raced, the best first; what is unknown comes last."""
        rows = [{"who": who, **entry} for who, entry in self.page(lab).get("races", {}).items()]
        return sorted(rows, key=lambda row: (row[by] is None, row[by] or 0.0))

    def progress(self, lab: Lab) -> str:
        """How far a lab has come, in two words."""
        page = self.page(lab)
        if not page.get("of"):
            return ""
        return "done" if page["passed"] == page["of"] else f"{page['passed']} of {page['of']}"

    def prediction_error(self, lab: Lab) -> float | None:
        """By what share the prediction was off; None where one of the two is missing."""
        said, found = (self.page(lab).get(name) for name in ("predicted", "measured"))
        if said is None or found is None:
            return None
        return abs(said / found - 1) if found else abs(said)

    def hints_seen(self, lab: Lab, part: int) -> int:
        """How many hints of a part, counted from 1, the learner has read."""
        return int(self.page(lab).get("hints", {}).get(str(part), 0))

    def note_hint(self, lab: Lab, part: int) -> None:
        """Keep that one more was read."""
        seen = self.page(lab).setdefault("hints", {})
        seen[str(part)] = self.hints_seen(lab, part) + 1
        self.save()


def read_pages(path: Path) -> Book:
    """What was kept; nothing of a file that is not there, or is no learner's."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    known = found.items() if isinstance(found, dict) else ()
    return {name: page for name, page in known if isinstance(page, dict)}


def write_pages(path: Path, pages: Book, field: str) -> None:
    """Keep them; a folder that cannot be written is told under this field."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(pages, indent=1))
    except OSError as refused:
        raise RecordError(
            field,
            f"{path} cannot be written ({refused.strerror})",
            "Name another folder with XDG_DATA_HOME.",
        ) from refused


def default_path(name: str = "labs.json") -> Path:
    """Where a learner's results of one kind are kept."""
    named = os.environ.get("XDG_DATA_HOME")
    return Path(named or Path.home() / ".local" / "share") / "stepladder" / name
