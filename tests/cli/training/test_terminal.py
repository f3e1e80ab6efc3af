"""A run is followed by a bar on a terminal, by lines in a pipe, by nothing where JSON is asked."""

import os
import pty
import subprocess
import sys

from stepladder.cli.training.terminal import Aside, Lines, Silence, display
from stepladder.record import Report

REPORT = Report(
    step=4,
    loss=2.5,
    grad_norm=1.0,
    lr=0.1,
    tokens=10,
    seconds=1.0,
    memory_bytes=2**30,
    tokens_per_second=1234.0,
)

FOLLOW = """
import sys
from stepladder.cli.training.terminal import display
from stepladder.record import Report
report = Report(4, 2.5, 1.0, 0.1, 10, 1.0, 2**30, 1234.0, mfu=0.25)
with display(10, first=2, memory_limit_bytes=None, quiet=False) as shown:
    shown.say("folder: runs/[bold]x[/y]")
    shown.show(report)
    print(type(shown).__name__)
"""


def test_nothing_is_shown_where_only_json_was_asked_for(capsys):
    with display(10, first=0, memory_limit_bytes=None, quiet=True) as shown:
        assert type(shown) is Silence
        shown.show(REPORT)
        shown.say("hello")
    assert capsys.readouterr().out == ""


def test_a_pipe_gets_the_log_line_and_sentences(capsys):
    with display(10, first=0, memory_limit_bytes=2**31, quiet=False) as shown:
        assert type(shown) is Lines
        shown.show(REPORT)
        shown.tell("hello [bold]")
    assert capsys.readouterr().out == f"{REPORT.line(memory_limit_bytes=2**31)}\nhello [bold]\n"


def test_a_rank_that_does_not_speak_for_all_says_only_what_concerns_itself(capsys):
    with display(10, first=0, memory_limit_bytes=None, quiet=False, speaker=False) as shown:
        assert type(shown) is Aside
        shown.show(REPORT)
        shown.tell("validation loss 2.5")
        shown.say("memory grows")
    assert capsys.readouterr().out == "memory grows\n"


def test_a_terminal_gets_a_bar_with_the_numbers_people_watch():
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOW], stdout=end, stderr=end, env=environment
    ) as run:
        os.close(end)
        seen = b""
        try:
            while part := os.read(terminal, 2**16):
                seen += part
        except OSError:  # the terminal's way of saying that the other end closed
            pass
    os.close(terminal)
    text = seen.decode()
    assert run.returncode == 0, text
    assert "step 5/10" in text
    assert "loss 2.500  1,234 tokens/s  1.00 GiB  MFU 25.0%" in text
    assert "folder: runs/[bold]x[/y]" in text
    assert "Bar" in text
