"""Learners' files run in forks of a server that has imported torch already: a check costs what it
computes, not the seconds of an import."""

import multiprocessing
from multiprocessing import forkserver

from stepladder.labs.grading import own_session

multiprocessing.set_forkserver_preload(["tests.labs.fork_server"])
own_session.METHOD = "forkserver"


def pytest_collection_finish(session):
    """Start the server where `tests` can be imported: some tests work in another folder, and what
    it cannot import it leaves out without a word."""
    if any("lab" in item.nodeid for item in session.items):
        forkserver.ensure_running()
