"""A run on the terminal: a progress bar where there is a terminal, log lines in a pipe."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from stepladder.cli.results.comparison_table import show_comparison
from stepladder.cli.results.first_screen import forecast_lines, mfu_line
from stepladder.cli.results.plots import plot_losses
from stepladder.cli.results.run_plots import draw_devices
from stepladder.cli.results.tables import as_json, table
from stepladder.job import JobStart, NoDisplay, TrainResult
from stepladder.job.summary.sample_text import PROMPT
from stepladder.record import Report

if TYPE_CHECKING:
    from rich.progress import Progress


class TerminalDisplay:
    """Shows a run to a person: reports, messages, the closing tables; and draws its plots."""

    def opening(self, text: str) -> None:
        print(text, flush=True)

    def start(self, start: JobStart) -> None:
        self.speaks = start.speaks
        self.memory_limit_bytes = start.memory_limit_bytes
        self.bar = ProgressBar(start) if start.speaks and sys.stdout.isatty() else None
        self.run_message("\n".join([start.headline, *forecast_lines(start)]))

    def step(self, step: int) -> None:
        if self.bar:
            self.bar.advance(step)

    def report(self, report: Report) -> None:
        if self.bar:
            self.bar.update(report)
        elif self.speaks:
            self.rank_message(report.line(memory_limit_bytes=self.memory_limit_bytes))

    def run_message(self, text: str) -> None:
        if self.speaks:
            self.rank_message(text)

    def rank_message(self, text: str) -> None:
        if self.bar:
            self.bar.print(text)
        else:
            print(text, flush=True)

    def stop(self) -> None:
        if self.bar:
            self.bar.stop()

    def finish(self, result: TrainResult) -> None:
        if result.stopped:  # drawing would use up what time is left
            print(result.stop_message)
            print(f"Look at it: {look_command(result)}")
            return
        draw_run(result)
        show_comparison(result)
        if line := mfu_line(result):
            print(line)
        if result.sample:
            print(f"\nA sample after '{PROMPT.decode()}':\n{result.sample}\n")
        figures = {name: value for name, value in result.figures().items() if shown(value)}
        paths = {name: figures.pop(name) for name in ("checkpoint", "plot") if name in figures}
        table("Measured", ["what", "value"], [list(pair) for pair in figures.items()])
        for name, path in paths.items():  # not in the table, which folds what is long
            print(f"{name}: {path}")
        print(f"Look at it: {look_command(result)}")


def shown(value: object) -> bool:
    """Whether a figure says something: not unknown, not a number that is none."""
    return value is not None and value == value


def look_command(result: TrainResult) -> str:
    return shlex.join(["stepladder", "watch", str(result.folder)])


class JsonDisplay(NoDisplay):
    """Prints the result as JSON and nothing else; draws the same plots."""

    def finish(self, result: TrainResult) -> None:
        if not result.stopped:
            draw_run(result)
        as_json(result.to_dict())


class ProgressBar:
    """A bar with the numbers people watch, and the time left."""

    def __init__(self, start: JobStart) -> None:
        self.progress = make_progress()
        self.task = self.progress.add_task(
            "train", total=start.steps, completed=start.first_step, numbers=""
        )
        self.progress.start()

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step + 1)

    def update(self, report: Report) -> None:
        mfu = "unknown" if report.mfu is None else f"{report.mfu:.1%}"
        numbers = (
            f"loss {report.loss:.3f}  {report.tokens_per_second:,.0f} {report.unit}/s  "
            f"{report.memory_bytes / 2**30:.2f} GiB  MFU {mfu}"
        )
        self.progress.update(self.task, completed=report.step + 1, numbers=numbers)

    def print(self, text: str) -> None:
        # soft_wrap: what is to be typed stays one line, however narrow the terminal.
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        self.progress.stop()


def make_progress() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("[bold]step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )


def draw_run(result: TrainResult) -> None:
    """The plots of a finished run, in its folder."""
    if result.losses:
        plot_losses(result.folder / "loss.png", result.losses, result.evaluations)
    if result.device.startswith("cuda"):  # else no reading is there, and a journal may be long
        draw_devices(result.folder)
