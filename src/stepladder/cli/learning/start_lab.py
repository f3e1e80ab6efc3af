"""`stepladder lab start` and `lab hint`: what a learner begins with, and a step further."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.cli.results.tables import as_json
from stepladder.errors import StepladderError

from .learner_file import write_new
from .wrapped import wrapped

if TYPE_CHECKING:
    from stepladder.labs.lab import Lab
    from stepladder.labs.lesson_text import Part
    from stepladder.labs.notebook import LabNotebook

ASSISTANTS = "AGENTS.md"  # where AI assistants look for what is wanted of them


def start(lab: Lab, options: argparse.Namespace) -> int:
    from stepladder.labs import claim, parts_left, starter
    from stepladder.labs.adapter import adapter
    from stepladder.labs.lesson_text import question

    path = options.file or Path(f"{lab.stem}_adapter.py" if options.adapter else f"{lab.stem}.py")
    source = lab.lesson.read_text(encoding="utf-8")
    text = adapter(lab, path.name) if options.adapter else starter(source)
    write_new(path, text, force=options.force)
    agents_file = tell_assistants(path.parent)
    left = [{"line": line, "part": words} for line, words in parts_left(text)]
    command = f"stepladder lab check {lab.name}" + (f" {path}" if options.file else "")
    asked = question(source).words
    if options.json:
        found = {"lab": lab.name, "file": str(path), "parts": left, "check": command}
        as_json({**found, "assistants": agents_file and str(agents_file), "question": asked})
        return 0
    print(f"{lab.title}\n\n{wrapped(f'Claim: {claim(source)}')}\n")
    print(f"Written: {path}")
    if agents_file:
        print(f"Written: {agents_file}, which asks AI assistants to teach and not to solve")
    for number, part in enumerate(left, start=1):
        print(wrapped(f"line {part['line']}: {part['part']}", f"  {number}. "))
    print(f"\n{wrapped(f'Predict first: {asked}')}\n  stepladder lab predict {lab.name} NUMBER")
    print(f"Stuck?  stepladder lab hint {lab.name}\nThen:   {command}")
    return 0


def tell_assistants(folder: Path) -> Path | None:
    """Leave a word to AI assistants in the folder, unless it has one of its own."""
    from stepladder.labs.adapter import ASSISTANTS as text

    path = folder / ASSISTANTS
    if path.exists():
        return None
    write_new(path, text, force=False)
    return path


def hint(lab: Lab, options: argparse.Namespace) -> int:
    """The next hint of a part: of the one that is asked for, or the first that is not written."""
    from stepladder.labs.lesson_text import parts
    from stepladder.labs.notebook import LabNotebook

    all_parts, book = parts(lab.lesson.read_text(encoding="utf-8")), LabNotebook()
    number = options.part or first_left(lab, options.file, all_parts, book)
    if not 1 <= number <= len(all_parts):
        problem = f"{lab.name} has no part {number}"
        raise StepladderError("part", problem, f"Use 1 to {len(all_parts)}.")
    part = all_parts[number - 1]
    seen = min(book.hints_seen(lab, number), len(part.hints))
    if seen < len(part.hints):
        book.note_hint(lab, number)
    shown = part.hints[: seen + 1]
    if options.json:
        found = {"part": number, "name": part.name, "goal": part.goal}
        as_json({"lab": lab.name, **found, "hints": shown, "of": len(part.hints)})
        return 0
    about = f"{part.name}: {part.goal}" if part.goal else f"somewhere in {part.name}."
    print(wrapped(f"Part {number} of {len(all_parts)}, {about}") + "\n")
    for place, words in enumerate(shown, start=1):
        print(wrapped(words, f"  {place}. "))
    left = len(part.hints) - len(shown)
    more = f"{left} more." if left else f"That is all on {part.name}."
    print(f"\n{more}{' Another part: --part N.' if len(all_parts) > 1 else ''}")
    return 0


def first_left(lab: Lab, file: Path | None, all_parts: list[Part], book: LabNotebook) -> int:
    """The first part that still says TODO in the learner's file, else the first with hints left."""
    from stepladder.labs import parts_left

    path = file or Path(f"{lab.stem}.py")
    goals = {words for _, words in parts_left(read(path))}
    for number, part in enumerate(all_parts, start=1):
        if part.goal in goals:
            return number
    for number, part in enumerate(all_parts, start=1):
        if book.hints_seen(lab, number) < len(part.hints):
            return number
    return 1


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # hints are also for who has not begun
