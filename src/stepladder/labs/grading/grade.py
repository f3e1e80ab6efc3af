"""The examiner, which runs in a process of its own: a learner's file against a lab's checks.

Whatever the file does is turned into a line that helps: an answer that is wrong, an error with the
learner's own lines and none of ours, a loop that does not end with the line it was in.
"""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from stepladder.labs.lab import Lab

from .compose_lesson import compose_lesson
from .finding import Finding, Wrong

Check = Callable[[ModuleType], str | None]  # may return numbers to show when it passes
OURS = Path(__file__).parents[2]  # the package


OVER, IDLE = signal.SIGALRM, signal.SIGVTALRM  # what the process that waits for findings sends
REASONS = {
    OVER: "It was still running when its processor time was over: a loop that does not end?",
    IDLE: "It waits for something that does not come: who was to send it, and has it ended?",
}


class TooLong(BaseException):
    """Raised in the learner's code when its time is over; `except Exception` does not catch it."""


def stop(number: int, _: Any) -> None:
    raise TooLong(REASONS[signal.Signals(number)])


def grade(lab: Lab, path: Path, checks: Sequence[Check]) -> Iterator[Finding]:
    """Yield each check's finding as soon as it is known."""
    for number in REASONS:
        signal.signal(number, stop)
    lesson: list[ModuleType] = []
    opened = attempt(
        "Your file can be run.", lambda: lesson.append(compose_lesson(lab, load(path))), path
    )
    if not opened.passed:
        yield opened
        return
    for check in checks:
        claim = " ".join((check.__doc__ or "").split())
        yield attempt(claim, partial(check, lesson[0]), path)


def checks_of(lab: Lab) -> list[Check]:
    module = importlib.import_module(f"stepladder.labs.checks.{lab.course_folder}.check_{lab.stem}")
    return [check for name, check in vars(module).items() if name.startswith("check_")]


def load(path: Path) -> ModuleType:
    """The file as a module, though it stands in no package."""
    name = f"lesson_{path.stem}"
    sys.path.append(str(path.parent))  # an adapter imports the files beside it
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def attempt(claim: str, action: Callable[[], str | None], path: Path) -> Finding:
    try:
        shown = action()
    except Wrong as wrong:
        return Finding(claim, False, str(wrong), wrong.found, wrong.expected)
    except TooLong as slow:
        where = "\n".join(own_lines(slow, path)[-2:])
        return Finding(claim, False, f"{slow}\n{where}".rstrip())
    except (Exception, SystemExit) as raised:
        return Finding(claim, False, explain(raised, path))
    return Finding(claim, True, shown or "")


def explain(raised: BaseException, path: Path) -> str:
    """An error in the learner's words: their lines, the error, and a remedy where it is plain."""
    if isinstance(raised, SyntaxError) and raised.filename == str(path):
        return f"line {raised.lineno}: {(raised.text or '').strip()}\n{raised.msg}"
    if isinstance(raised, AttributeError) and getattr(raised.obj, "__file__", "") == str(path):
        return f"Your file has no '{raised.name}' any more: the starter has it."
    if isinstance(raised, ModuleNotFoundError):
        return f"This lab needs the package '{raised.name}': pip install {raised.name}"
    lines = own_lines(raised, path)
    said = f"{type(raised).__name__}: {raised}".rstrip(": ")
    if isinstance(raised, NotImplementedError) and lines:
        return f"{lines[-1]}\nThis part is not written yet."
    if "'ellipsis'" in str(raised):  # as Python names the type of ...
        said = "A part is not written yet: '...' still stands where a value should be."
    elif not lines:
        said = f"What your code gave back could not be used. {said}"
    return "\n".join([*lines, said])


def own_lines(raised: BaseException, path: Path) -> list[str]:
    """The lines of a traceback that stand in the learner's files."""
    frames = [*traceback.extract_tb(raised.__traceback__), *getattr(raised, "frames", ())]
    own = [(Path(f.filename), f) for f in frames if is_own(Path(f.filename), path)]
    return [
        f"{'' if file == path else f'{file.name} '}line {f.lineno}: {f.line}" for file, f in own
    ]


def is_own(file: Path, path: Path) -> bool:
    """Whether a file is the learner's: the one that is checked, or one beside or below it."""
    installed = OURS in file.parents or "site-packages" in file.parts
    return file == path or (path.parent in file.parents and not installed)
