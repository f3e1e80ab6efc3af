"""A thread beside the main one that is gone before the interpreter goes.

Python ends with threads still running. One that is in a call of torch's then comes back to an
interpreter that is no more, and the process is aborted: a run that went well ends with SIGABRT.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from threading import Event, Thread

LAST_CALL_SECONDS = 5.0  # for a call of the thread to return; a store that is gone may not answer


def beside(work: Callable[[Event], None], name: str) -> Event:
    """Have `work` run in a thread until the event it is given is set: by you, or at the end."""
    done = Event()
    thread = Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    atexit.register(leave, done, thread)
    return done


def leave(done: Event, thread: Thread) -> None:
    done.set()
    thread.join(LAST_CALL_SECONDS)
