"""A signal becomes a flag in a real process; a second Ctrl-C interrupts; handlers come back."""

import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from stepladder.world import StopSignals, signal_exit_code
from stepladder.world import stop_signals as signals
from stepladder.world.stop_signals import CAUGHT_SIGNALS, REPEAT_SECONDS

LOOP = textwrap.dedent("""
    import runpy, signal, sys, time
    StopSignals = runpy.run_path(sys.argv[1])["StopSignals"]  # not its package, which imports torch
    try:
        with StopSignals() as stop:
            print("ready", flush=True)
            for _ in range(2 * ("echo" in sys.argv)):
                signal.raise_signal(signal.SIGINT)
            while stop.received is None or "stubborn" in sys.argv:
                time.sleep(0.01)
                if stop.received:
                    print(stop.received, flush=True)
            print("whole step", stop.received, flush=True)
    except KeyboardInterrupt:
        print("interrupted", stop.received, flush=True)
        sys.exit(5)
""")


def start(*words):
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, signals.__file__, *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", CAUGHT_SIGNALS)
def test_a_signal_is_a_flag_and_the_step_finishes(number):
    process = start()
    process.send_signal(number)
    out, _ = process.communicate(timeout=100)
    assert out.splitlines()[-1] == f"whole step {number.name}"
    assert process.returncode == 0


def test_a_second_ctrl_c_interrupts_at_once():
    process = start("stubborn")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "SIGINT\n"
    time.sleep(REPEAT_SECONDS)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    assert out.splitlines()[-1] == "interrupted SIGINT"
    assert process.returncode == 5


def test_a_ctrl_c_that_a_launcher_repeats_is_one():
    # It sends both itself: of two from here, one might come when the step is done.
    command = [sys.executable, "-c", LOOP, signals.__file__, "echo"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=100)
    assert ran.stdout == "ready\nwhole step SIGINT\n"
    assert ran.returncode == 0


def test_a_second_sigterm_changes_nothing():
    process = start("stubborn")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
    process.kill()
    process.wait()


def test_handlers_come_back():
    before = [signal.getsignal(number) for number in CAUGHT_SIGNALS]
    with StopSignals() as stop:
        assert all(signal.getsignal(number) == stop._note for number in CAUGHT_SIGNALS)
    assert [signal.getsignal(number) for number in CAUGHT_SIGNALS] == before


def test_handlers_come_back_after_an_error():
    before = [signal.getsignal(number) for number in CAUGHT_SIGNALS]
    with pytest.raises(ZeroDivisionError), StopSignals():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in CAUGHT_SIGNALS] == before


def test_a_handler_python_did_not_set_becomes_the_default():
    before = signal.getsignal(signal.SIGUSR1)
    stop = StopSignals()
    stop._before = {signal.SIGUSR1: None}
    stop.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    signal.signal(signal.SIGUSR1, before)


def test_another_thread_may_use_it_and_sets_no_handler():
    seen = []

    def use():
        with StopSignals() as stop:
            seen.append((stop.received, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [(None, before)]


def test_a_scheduler_is_answered_with_one_code_and_a_person_with_another():
    assert (
        signal_exit_code("SIGTERM"),
        signal_exit_code("SIGUSR1"),
        signal_exit_code("SIGINT"),
    ) == (143, 143, 130)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_process_that_is_not_done_in_time_leaves_with_the_code_and_a_line(number):
    loop = LOOP.replace("StopSignals() as", "StopSignals(0.3) as")
    process = subprocess.Popen(
        [sys.executable, "-c", loop, signals.__file__, "stubborn"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.send_signal(number)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 143
    assert said == (
        f"{number.name}: not done within 0.3 s (run.grace_seconds); "
        "leaving with the last checkpoint that was whole.\n"
    )


def test_a_person_has_all_the_time():
    process = start_with("StopSignals(0.2) as")
    process.send_signal(signal.SIGINT)
    time.sleep(0.6)
    assert process.poll() is None
    process.kill()
    process.wait()


def start_with(how):
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP.replace("StopSignals() as", how), signals.__file__, "stubborn"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process
