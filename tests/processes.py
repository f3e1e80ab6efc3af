"""How long tests wait for processes, and whether those have ended, asked without a race."""

import time
from collections.abc import Iterable

import psutil

# Only what hangs takes so long, even on a machine ten times as slow; less than a test's own limit,
# so that the test that waits says for what.
PATIENCE_SECONDS = 500


def ended(pids: Iterable[int], seconds: float = 0) -> bool:
    """Whether none of them runs any more, at the latest after so long.

    One that has ended and whose parent has not asked for its code yet runs no more.
    """
    deadline, left = time.monotonic() + seconds, list(pids)
    while (left := [pid for pid in left if runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
