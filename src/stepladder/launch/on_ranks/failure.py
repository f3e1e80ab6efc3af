"""The first failure of a call: which rank, what happened, and the error that is raised for it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from stepladder.errors import LostRank, StepladderError, WorldError

from .worker_process import Worker

FAILED = "Try one rank first: what fails there fails everywhere."
HUNG = "Every rank must call the same collectives in the same order."


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call has no results."""

    rank: int
    ranks: int
    problem: str  # after "rank 1 of 2": what it did
    remedy: str = FAILED
    lost: bool = False  # it ended or hung, rather than raised
    error: BaseException | None = None  # as raised there, where it could be sent
    message: str = ""  # the error's type and text
    frames: tuple[tuple[str, int, str], ...] = ()  # of its traceback: file, line, function
    details: str = ""  # its traceback, or the stacks of a rank that hangs
    last_lines: tuple[str, ...] = ()  # of its output, where that was shown

    @property
    def sentence(self) -> str:
        return f"rank {self.rank} of {self.ranks} {self.problem}"

    def exception(self) -> BaseException:
        """The error to raise: the rank's own where it could be sent, with a note of its rank."""
        kind = LostRank if self.lost else WorldError
        error = self.error or kind("ranks", self.sentence, self.remedy)
        if self.details:
            error.add_note(f"on rank {self.rank} of {self.ranks}:\n{self.details}")
        return error


def first_failure(workers: Sequence[Worker], late: str) -> Failure | None:
    """What went wrong first; a death before the errors of ranks that only noticed it.

    Args:
        late: what a rank did that has not answered.
    """
    # A rank may also have answered with a value and died after that.
    answered = [rank for rank, one in enumerate(workers) if one.answer and "moment" in one.answer]
    answered.sort(key=lambda rank: (workers[rank].answer or {})["moment"])
    errors = [raised(rank, workers) for rank in answered]
    for failure in errors:  # one that says why, as where it ran out of memory and then left
        if isinstance(failure.error, StepladderError) and not isinstance(failure.error, LostRank):
            return failure
    for rank, worker in enumerate(workers):
        if worker.lost:
            problem, lines = ending(worker.exit_code()), tuple(worker.last_lines)
            return Failure(rank, len(workers), problem, lost=True, last_lines=lines)
    for rank, worker in enumerate(workers):
        if worker.silent and not errors:
            lines, stack = tuple(worker.last_lines), worker.stack()
            return Failure(rank, len(workers), late, HUNG, True, details=stack, last_lines=lines)
    return errors[0] if errors else None


def raised(rank: int, workers: Sequence[Worker]) -> Failure:
    worker, error = workers[rank], None
    answer = worker.answer or {}
    with suppress(Exception):  # a type that only the rank knows
        error = worker.load("error")
    first_line = answer["message"].strip().partition("\n")[0]
    return Failure(
        rank,
        len(workers),
        f"failed with {answer['kind']}: {first_line}",
        error=error,
        message=f"{answer['kind']}: {answer['message']}",
        frames=tuple(answer["frames"]),
        details=answer["traceback"],
        last_lines=tuple(worker.last_lines),
    )


def ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended by itself with exit code {code}"
