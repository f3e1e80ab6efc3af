"""A signal becomes a flag in a real process; a second Ctrl-C interrupts; handlers come back."""

import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from stepladder.world import Stop, signals
from stepladder.world.signals import CAUGHT, ECHO_SECONDS

LOOP = textwrap.dedent("""
    import runpy, sys, time
    Stop = runpy.run_path(sys.argv[1])["Stop"]  # the file alone: its package would import torch
    try:
        with Stop() as stop:
            print("ready", flush=True)
            while stop.asked is None or "stubborn" in sys.argv:
                time.sleep(0.01)
                if stop.asked:
                    print(stop.asked, flush=True)
            print("whole step", stop.asked, flush=True)
    except KeyboardInterrupt:
        print("interrupted", stop.asked, flush=True)
        sys.exit(5)
""")


def start(*words):
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, signals.__file__, *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", CAUGHT)
def test_a_signal_is_a_flag_and_the_step_finishes(number):
    process = start()
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert out.splitlines()[-1] == f"whole step {number.name}"
    assert process.returncode == 0


def test_a_second_ctrl_c_interrupts_at_once():
    process = start("stubborn")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "SIGINT\n"
    time.sleep(ECHO_SECONDS)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out.splitlines()[-1] == "interrupted SIGINT"
    assert process.returncode == 5


def test_a_ctrl_c_that_a_launcher_repeats_is_one():
    process = start()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out.splitlines()[-1] == "whole step SIGINT"
    assert process.returncode == 0


def test_a_second_sigterm_changes_nothing():
    process = start("stubborn")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
    process.kill()
    process.wait()


def test_handlers_come_back():
    before = [signal.getsignal(number) for number in CAUGHT]
    with Stop() as stop:
        assert all(signal.getsignal(number) == stop._note for number in CAUGHT)
    assert [signal.getsignal(number) for number in CAUGHT] == before


def test_handlers_come_back_after_an_error():
    before = [signal.getsignal(number) for number in CAUGHT]
    with pytest.raises(ZeroDivisionError), Stop():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in CAUGHT] == before


def test_a_handler_python_did_not_set_becomes_the_default():
    before = signal.getsignal(signal.SIGUSR1)
    stop = Stop()
    stop._before = {signal.SIGUSR1: None}
    stop.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    signal.signal(signal.SIGUSR1, before)


def test_another_thread_may_use_it_and_sets_no_handler():
    seen = []

    def use():
        with Stop() as stop:
            seen.append((stop.asked, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [(None, before)]
