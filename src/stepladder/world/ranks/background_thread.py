"""A background thread that ends before the interpreter does.

Python exits with daemon threads still running. One that is inside a torch call then returns to a
finalised interpreter, and the process is aborted: a successful run ends with SIGABRT.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from threading import Event, Thread

JOIN_SECONDS = 5.0  # for the thread's last call to return; a lost store may not answer


def start_background_thread(work: Callable[[Event], None], name: str) -> Event:
    """Run `work` in a thread until the event it is given is set, by the caller or at exit."""
    done = Event()
    thread = Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    atexit.register(stop_and_join, done, thread)
    return done


def stop_and_join(done: Event, thread: Thread) -> None:
    done.set()
    thread.join(JOIN_SECONDS)
