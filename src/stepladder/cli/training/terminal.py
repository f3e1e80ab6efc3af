"""A run on the terminal: a live bar where there is one, plain lines where there is not."""

from __future__ import annotations

import sys
from typing import Protocol

from stepladder.record import Report


class Display(Protocol):
    """Follows a run."""

    def __enter__(self) -> Display: ...
    def __exit__(self, *exit: object) -> None: ...
    def show(self, report: Report) -> None: ...
    def tell(self, sentence: str) -> None: ...  # of the run, which one rank tells for all
    def say(self, sentence: str) -> None: ...  # of this rank


def display(
    steps: int, *, first: int, memory_limit_bytes: int | None, quiet: bool, speaker: bool = True
) -> Display:
    """The display this terminal can have; nothing at all where only JSON was asked for.

    Args:
        speaker: whether this rank tells of the run; the others say only what concerns themselves.
    """
    if quiet:
        return Silence()
    if not speaker:
        return Aside()
    return Bar(steps, first) if sys.stdout.isatty() else Lines(memory_limit_bytes)


class Silence:
    """Shows nothing."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *exit: object) -> None:
        pass

    def show(self, report: Report) -> None:
        pass

    def tell(self, sentence: str) -> None:
        pass

    def say(self, sentence: str) -> None:
        pass


class Aside(Silence):
    """What a rank says that does not tell of the run."""

    def say(self, sentence: str) -> None:
        print(sentence, flush=True)


class Lines(Aside):
    """One log line a report."""

    def __init__(self, memory_limit_bytes: int | None) -> None:
        self.limit = memory_limit_bytes

    def show(self, report: Report) -> None:
        print(report.line(memory_limit_bytes=self.limit), flush=True)

    def tell(self, sentence: str) -> None:
        self.say(sentence)


class Bar:
    """A progress bar with the numbers people watch, and the time left."""

    def __init__(self, steps: int, first: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("[bold]step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        self.progress = Progress(*columns)
        self.task = self.progress.add_task("train", total=steps, completed=first, numbers="")

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *exit: object) -> None:
        self.progress.stop()

    def show(self, report: Report) -> None:
        mfu = "unknown" if report.mfu is None else f"{report.mfu:.1%}"
        numbers = (
            f"loss {report.loss:.3f}  {report.tokens_per_second:,.0f} tokens/s  "
            f"{report.memory_bytes / 2**30:.2f} GiB  MFU {mfu}"
        )
        self.progress.update(self.task, completed=report.step + 1, numbers=numbers)

    def tell(self, sentence: str) -> None:
        self.say(sentence)

    def say(self, sentence: str) -> None:
        self.progress.console.print(sentence, highlight=False, markup=False)
