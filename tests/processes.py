"""Whether processes have ended, asked without a race against their ending."""

import time
from collections.abc import Iterable

import psutil


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
