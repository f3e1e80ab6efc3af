"""A run is followed by a bar on a terminal, by lines in a pipe, by nothing where JSON is asked."""

import os
import pty
import subprocess
import sys

from stepladder.cli.training_display import JsonDisplay, TerminalDisplay
from stepladder.job import JobStart
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
from stepladder.cli.training_display import TerminalDisplay
from stepladder.job import JobStart
from stepladder.record import Report
report = Report(4, 2.5, 1.0, 0.1, 10, 1.0, 2**30, 1234.0, mfu=0.25)
shown = TerminalDisplay()
shown.start(JobStart("folder: runs/[bold]x[/y]", 10, 2, None, True, None))
shown.report(report)
shown.step(6)
shown.run_message("stepladder watch " + "runs/" * 40)
shown.stop()
print(type(shown.bar).__name__)
"""


def start(speaks: bool = True) -> JobStart:
    return JobStart("gpt-tiny", 10, 0, 2**31, speaks, None)


def test_nothing_is_shown_where_only_json_was_asked_for(capsys):
    shown = JsonDisplay()
    shown.start(start())
    shown.report(REPORT)
    shown.run_message("hello")
    shown.stop()
    assert capsys.readouterr().out == ""


def test_a_pipe_gets_the_log_line_and_sentences(capsys):
    shown = TerminalDisplay()
    shown.start(start())
    shown.report(REPORT)
    shown.run_message("hello [bold]")
    line = REPORT.line(memory_limit_bytes=2**31)
    assert capsys.readouterr().out == f"gpt-tiny\n{line}\nhello [bold]\n"


def test_a_rank_that_does_not_speak_for_all_says_only_what_concerns_itself(capsys):
    shown = TerminalDisplay()
    shown.start(start(speaks=False))
    shown.report(REPORT)
    shown.run_message("validation loss 2.5")
    shown.rank_message("memory grows")
    assert capsys.readouterr().out == "memory grows\n"


def test_a_terminal_gets_a_bar_with_the_numbers_people_watch(tmp_path):
    script = tmp_path / "follow.py"
    script.write_text(FOLLOW)
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=end, stderr=end, env=environment
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
    assert "step 7/10" in text, "the bar moves at every step, not only with a report"
    assert "stepladder watch " + "runs/" * 40 in text, "a command stays in one line"
    assert "loss 2.500  1,234 tokens/s  1.00 GiB  MFU 25.0%" in text
    assert "folder: runs/[bold]x[/y]" in text
    assert "ProgressBar" in text
