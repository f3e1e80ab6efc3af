"""Signals of a launcher: who gets them."""

import os
import signal
import subprocess

import pytest

from stepladder.launch.local.launcher_signals import Signals


@pytest.fixture
def start():
    """Starts processes that lead a session of their own, as ranks do."""
    started = []

    def begin():
        started.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_only_ranks_get_the_launchers_signal(start):
    before = start()
    with Signals() as signals:
        rank, beside = start(), start()
        signals.rank_processes = lambda: [rank.pid]
        os.kill(os.getpid(), signal.SIGTERM)
        assert rank.wait(10) == -signal.SIGTERM
    assert (before.poll(), beside.poll()) == (None, None)


def test_ranks_that_the_agent_is_starting_get_it_too(start):
    before = start()
    with Signals():
        rank = start()
        os.kill(os.getpid(), signal.SIGTERM)
        assert rank.wait(10) == -signal.SIGTERM
    assert before.poll() is None
