"""Which rank failed first, and what it said, in a line.

One failing rank makes the others fail: they lose it in the middle of a collective, or the agent
ends them. So the first failure that the agent saw counts, unless that rank says that it only lost
another one which left word of an earlier failure.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from .rank_logs import RankLogs

FAILED, MISTAKE, STOPPED = 1, 2, 128  # from 128 on: ended by a signal, as shells count


@dataclass(frozen=True, slots=True)
class Ending:
    code: int = 0
    lines: tuple[str, ...] = ()
    reported: bool = False  # by the rank itself: printed even if the run was being stopped


def first_failure(failures: Mapping[int, ProcessFailure], logs: RankLogs) -> Ending:
    """How the run ended; the failures in the order in which the agent saw them."""
    words = {rank: failure.error_file_data for rank, failure in failures.items()}
    reported = {rank: word for rank, word in words.items() if "moment" in word}
    first = next(iter(failures))
    causes = [rank for rank, word in reported.items() if not word["follows"]]
    if first in reported and causes:
        first = min(causes, key=lambda rank: reported[rank]["moment"])
    if first in reported:
        return of_word(first, reported[first], reported, logs)
    return of_code(first, failures[first], logs)


def of_word(
    rank: int, word: Mapping[str, Any], reported: Mapping[int, Any], logs: RankLogs
) -> Ending:
    shared = len(reported) > 1 and all(other["line"] == word["line"] for other in reported.values())
    line = word["line"] if shared or word["follows"] else f"[rank {rank}] {word['line']}"
    if word.get("again"):  # it would not fail the same way: the next start takes less
        return Ending(FAILED, (line,), reported=True)
    if word["mistake"]:
        return Ending(MISTAKE, (line,), reported=True)
    trace = logs.path(rank, "traceback")
    trace.write_text(word["message"]["extraInfo"]["py_callstack"])
    return Ending(FAILED, (line, f"Its traceback: {trace}"), reported=not word["follows"])


def of_code(rank: int, failure: ProcessFailure, logs: RankLogs) -> Ending:
    """A rank that left no word: what ended it, and its last complaint."""
    if failure.exitcode > STOPPED:
        return Ending(failure.exitcode)  # it was asked to stop, and did
    line, last = f"ended with exit code {failure.exitcode}.", logs.last_error_line(rank)
    if failure.exitcode < 0:
        line = f"ended by {failure.signal_name()}."
    if failure.exitcode == -signal.SIGKILL:
        line, last = f"{line[:-1]}, which is how a machine short of memory ends a process.", ""
    said = (f"Its last words: {last}",) if last else ()
    return Ending(FAILED, (f"[rank {rank}] {line}", *said, f"Its log: {logs.path(rank, 'err')}"))
