"""One small run, started in different places: it must end with the same bits everywhere.

Its model can be slowed down by a file beside it, so that there is time to disturb a run without
using up a processor.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.victim import LIMIT_SECONDS, Victim, environment

STEPS, SAVE_EVERY = 30, 5
MODEL = """
import time
from pathlib import Path

from torch import nn

from stepladder.model import build

PAUSE = float(Path(__file__).with_name("pause").read_text())
HELD = Path(__file__).with_name("held")


def wait(*_) -> None:
    time.sleep(PAUSE)
    while HELD.exists():
        time.sleep(0.02)


def slow(sequence: int, dropout: float) -> nn.Module:
    shape = "gpt:layers=1,hidden=16,heads=2,vocab=256"
    module = build(shape, sequence=sequence, dropout=dropout)
    module.register_forward_pre_hook(wait)
    return module
"""
RUN = f"""
[model]
name = "slow:slow"
sequence = 16
dropout = 0.1
[data]
source = "text:words"
workers = "0"
[plan]
precision = "fp32"
[train]
steps = {STEPS}
batch = 12
report_every = 1
save_every = {SAVE_EVERY}
evaluate_every = 0
evaluate_batches = 1
sample = 0
device = "cpu"
"""


class Place:
    """A folder with the run's files, and the runs that were started from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launched: list[Launched] = []
        (folder / "words").mkdir(parents=True)
        (folder / "words" / "all.txt").write_text("every rung leaves it alone. " * 400)
        (folder / "slow.py").write_text(MODEL)
        (folder / "RUN.toml").write_text(RUN)
        self.pause(0)

    def pause(self, seconds: float) -> None:
        """How long each pass of the runs that start from now on takes at least."""
        (self.folder / "pause").write_text(str(seconds))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody takes a step meanwhile, however long it takes to disturb a run."""
        (self.folder / "held").touch()
        yield
        (self.folder / "held").unlink()

    def launch(self, on: str, name: str, *words: str, before: Sequence[str] = ()) -> Launched:
        self.launched.append(Launched(self.folder, on, name, words, before))
        return self.launched[-1]

    def end(self) -> None:
        """Leave no launcher behind, where a test failed and did not wait for its own."""
        for one in self.launched:
            one.process.kill()
            one.process.wait()

    def reference(self) -> Victim:
        """The run on this machine that nobody touches, made once."""
        run = Victim(self.folder / "reference", [])
        if not (run.folder / "latest").exists():
            self.pause(0)
            launched = self.launch("local", "reference", "--ranks-per-node", "2")
            assert launched.wait() == 0, launched.said()
        return run


class Launched:
    """One `stepladder launch`, and what came of it."""

    def __init__(
        self, folder: Path, on: str, name: str, words: Sequence[str], before: Sequence[str]
    ) -> None:
        self.run = Victim(folder / name, [])
        self.terminal = folder / f"{name}.txt"
        command = [sys.executable, "-m", "stepladder.cli.main", "launch", "RUN.toml", "--on", on]
        with self.terminal.open("ab") as terminal:
            self.process = subprocess.Popen(
                [*before, *command, "--run.folder", str(self.run.folder), *words],
                cwd=folder,
                stdout=terminal,
                stderr=subprocess.STDOUT,
                env=environment(),
            )

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        return self.process.wait(seconds)

    def said(self) -> str:
        return self.terminal.read_text(errors="replace")

    def until(self, what: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def until_ended(self, what: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
        """Wait for something that happens after the launcher itself is gone."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def trains(self, step: int) -> None:
        """Wait until so many steps are taken and a checkpoint of them is whole."""
        self.until(lambda: self.run.committed() > 0 and len(self.run.losses()) > step)

    def assert_same(self, reference: Victim) -> None:
        """Every parameter, every optimizer state and every step's loss, to the last bit."""
        assert self.run.committed() == STEPS, self.said()
        weights = reference.weights(STEPS)
        assert weights and self.run.weights(STEPS) == weights
        assert self.run.losses() == reference.losses()
        assert all(len(values) == 1 for values in self.run.losses().values())
