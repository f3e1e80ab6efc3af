"""What a started rank does first and last: stay with its launcher, and leave word of its failure.

The agent that starts ranks names a file for each, and reads there why it failed. Ours says more
than torch's own: when to the microsecond, since the first of several failures is the one to show;
and whether it is a user's mistake, or only the loss of a rank that had failed before.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
import traceback
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

from stepladder.errors import LostRank, RankOutOfMemory, StepladderError

PARENT_DEATH_SIGNAL, ITS_QUESTION = 1, 2  # prctl's numbers: to set it, and to ask which is set


def begin_rank() -> None:
    """Write line by line, which a reader of several ranks needs, and end when the launcher ends."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if sys.platform == "linux":
        prctl, held = ctypes.CDLL(None).prctl, ctypes.c_int()
        prctl(ITS_QUESTION, ctypes.byref(held))
        if not held.value:  # else whoever started it has chosen one
            prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def record_failure(error: BaseException) -> None:
    """Leave word of what ended this rank, where its launcher looks."""
    FailureFile().record_exception(error)


class FailureFile(ErrorHandler):
    """Torch's file of a rank's error, with the fields of ours beside it."""

    def record_exception(self, e: BaseException) -> None:
        file = self._get_error_file_path()
        if not file:
            return
        trace = "".join(traceback.format_exception(e))
        moment = time.time()
        message = {
            "message": str(e),
            "extraInfo": {"py_callstack": trace, "timestamp": str(int(moment))},
        }
        reported = {
            "moment": moment,
            "line": in_a_line(e),
            "mistake": isinstance(e, StepladderError) and not isinstance(e, LostRank),
            "again": isinstance(e, RankOutOfMemory) and e.micro > 0,
            "follows": isinstance(e, LostRank),
        }
        Path(file).write_text(json.dumps({"message": message, **reported}))


def in_a_line(error: BaseException) -> str:
    """The error as its user reads it: its kind and its line where it is not written for one."""
    if isinstance(error, StepladderError):
        return str(error)
    said = str(error).strip().partition("\n")[0]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {said}{where}" if said else f"{type(error).__name__}{where}"
