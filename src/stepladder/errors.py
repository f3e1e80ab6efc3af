"""Everything stepladder raises on purpose, drawn as a tree.

    StepladderError
    ├── PlanError        what was asked for cannot be: a plan, a cluster, a run file, an option
    │   └── PlanErrors   several of them, found in one pass
    ├── ModelError       the module: no loss, no blocks, a tensor on the wrong device
    ├── DataError        the data: missing, empty, unreadable
    ├── WorldError       the processes: wrong number, half an environment, different code
    │   ├── LostRank     a rank that ended or hung while others waited for it
    │   └── UnsupportedTorch  this torch lacks a name that the feature needs
    ├── RecordError      the run folder: unwritable, foreign, damaged
    │   └── Unproven     what this installation cannot check, though another can: no damage
    └── TrainingError    the run itself
        ├── NonFinite    a loss or gradient that is not a number
        └── OutOfMemory  a device or a ceiling was exceeded
            └── RankOutOfMemory  on one rank of several, which then all end

Every message has one grammar: **field: what is so, with its numbers. The way out, computed.** The
constructor's signature is that grammar, so a message without a field cannot be written.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral


def first_line(error: BaseException) -> str:
    """What an error of any kind says, for a sentence of ours."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class StepladderError(Exception):
    """One line for the user: the field, what is so, the way out."""

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        self.field, self.problem, self.remedy = field, problem, remedy
        super().__init__(
            field, problem, remedy
        )  # all three in args, so it pickles between processes

    def __str__(self) -> str:
        problem = f"{self.field}: {self.problem.rstrip('.')}." if self.field else self.problem
        return in_one_line(f"{problem} {self.remedy}".rstrip())

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows of it (IPython asks by this name): no traceback there either."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]


class PlanError(StepladderError):
    """What was asked for cannot be."""


class PlanErrors(PlanError):
    """Several problems of one plan, reported at once as a compiler does."""

    def __init__(self, problems: Iterable[PlanError]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(first.field, first.problem, first.remedy)
        self.args = (self.problems,)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class ModelError(StepladderError):
    """The module cannot be used as it is."""


class DataError(StepladderError):
    """The data cannot be used as it is."""


class WorldError(StepladderError):
    """The processes or the machine are not what the plan needs."""


class LostRank(WorldError):
    """A rank ended or hung while others waited for it: no user's mistake."""


class UnsupportedTorch(WorldError):
    """This torch lacks a name that one feature needs; everything else works."""


class RecordError(StepladderError):
    """The run folder cannot be read or written."""


class Unproven(RecordError):
    """Another installation can tell whether this is as written; nothing says that it is damaged."""


class TrainingError(StepladderError):
    """The run went wrong while it ran."""


class NonFinite(TrainingError):
    """A loss or a gradient is not a finite number."""


class OutOfMemory(TrainingError):
    """A device, or the ceiling the plan set, was exceeded."""


class RankOutOfMemory(OutOfMemory):
    """Memory ran out on one rank of several, and all of them left the step."""

    micro: int = 0  # rows of one pass that all agreed to go on with


def in_one_line(text: str) -> str:
    """The text with what a user's words may hold and a terminal must not be sent written out."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def raise_all(problems: Iterable[PlanError]) -> None:
    """Raise one error for one problem, a list for several, nothing for none."""
    found = tuple(problems)
    if len(found) == 1:
        raise found[0]
    if found:
        raise PlanErrors(found)


def require_type(field: str, value: object, kind: type | tuple[type, ...], remedy: str) -> None:
    """Refuse a value of a type that the field does not take, before it leads anywhere."""
    if not isinstance(value, kind):
        given = "None" if value is None else type(value).__name__
        raise PlanError(field, f"takes no {given}", remedy)


def require_count(field: str, value: object, what: str, least: int = 1) -> None:
    """Refuse what is no whole number, or too small a one.

    Args:
        what: it should be, such as "a number of steps".
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:  # type: ignore[operator]
        raise PlanError(field, f"{value!r} is not {what}", f"Use {least} or more.")


def nearest(word: str, choices: Iterable[str]) -> str:
    """The remedy for a misspelt word: the closest choice, or all of them."""
    names = list(choices)
    close = get_close_matches(word, names, n=1, cutoff=0.6)
    return f"Did you mean '{close[0]}'?" if close else f"Choose one of: {', '.join(names)}."
