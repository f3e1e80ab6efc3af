"""One training run to be disturbed: started as a user would, found by its processes, compared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from stepladder.record import read_journal

TINY = [
    "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "16",
    "--model.dropout", "0.1", "--train.batch", "12", "--train.sample", "0",
    "--train.evaluate_every", "0", "--train.evaluate_batches", "1", "--train.report_every", "1",
    "--train.device", "cpu", "--data.workers", "0", "--plan", "fp32",
]  # fmt: skip
LIMIT_SECONDS = 300  # a run that does nothing for so long hangs


class Victim:
    """A run folder, and the command that trains in it; the command may be started many times."""

    def __init__(
        self, folder: Path, words: Sequence[str], *, before: Sequence[str] = (), name: str = ""
    ) -> None:
        self.folder, self.words = folder, [*TINY, "--run.folder", str(folder), *words]
        self.before = list(before)  # words that put the command elsewhere
        self.terminal = folder / f"terminal{name}.txt"
        self.launcher: subprocess.Popen[bytes] | None = None
        self.starts = 0
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start the command, or start it again as a scheduler would: with the same words."""
        self.starts += 1
        command = [sys.executable, "-m", "stepladder.cli.main", "train", *self.words, "--elastic"]
        with self.terminal.open("ab") as terminal:
            self.launcher = subprocess.Popen(
                [*self.before, *command],
                stdout=terminal,
                stderr=subprocess.STDOUT,
                env=environment(),
            )

    def ranks(self) -> dict[int, psutil.Process]:
        """Processes that are ranks now, by their number."""
        assert self.launcher is not None
        found: dict[int, psutil.Process] = {}
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.launcher.pid).children():
                # One may end while we look, or not yet be more than a copy of the launcher.
                with suppress(psutil.Error, KeyError):
                    found[int(child.environ()["RANK"])] = child
        return found

    def entries(self, kind: str) -> list[dict]:
        if not (self.folder / "journal.jsonl").exists():
            return []
        return list(read_journal(self.folder, kind=kind))

    def lives(self) -> int:
        """How often ranks have begun to train."""
        return len(self.entries("start"))

    def committed(self) -> int:
        """The step of the latest checkpoint."""
        try:
            return int((self.folder / "latest").read_text().strip().removeprefix("step-"))
        except (OSError, ValueError):
            return 0

    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        with os.scandir(self.folder) as names:
            return any(name.name.startswith(".step-") for name in names)

    def wait_for(
        self, what: Callable[[], bool], seconds: float = LIMIT_SECONDS, pause: float = 0.02
    ) -> bool:
        """Whether it came true before the command ended."""
        assert self.launcher is not None
        deadline = time.monotonic() + seconds
        while not what():
            if self.launcher.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing happened for {seconds:g} s in {self.folder}")
            time.sleep(pause)
        return True

    def end(self) -> None:
        """Leave no process behind."""
        if self.launcher and self.launcher.poll() is None:
            ranks = self.ranks()
            self.launcher.kill()
            self.launcher.wait()
            for rank in ranks.values():
                with suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)

    def weights(self, step: int) -> dict[str, bytes]:
        """Every parameter and optimizer state of a checkpoint, to the bit."""
        files = (self.folder / f"step-{step:06d}").glob("*.safetensors")
        return {f.name: f.read_bytes() for f in files if not f.name.startswith("rank-")}

    def losses(self) -> dict[int, set[float]]:
        """Each step's loss, as often as it was taken."""
        return self.taken("loss")

    def taken(self, figure: str) -> dict[int, set[float]]:
        """A figure of each step, as often as it was taken."""
        found = defaultdict(set)
        for entry in self.entries("step"):
            found[entry["step"]].add(entry[figure])
        return dict(found)


def environment() -> dict[str, str]:
    """A shell's of its own: the launcher picks the interface, which the other tests fix."""
    launched = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    launched += ("GLOO_SOCKET_IFNAME",)
    kept = {name: value for name, value in os.environ.items() if name not in launched}
    return {**kept, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
