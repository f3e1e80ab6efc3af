"""Logs of the ranks: all output in files, and on the terminal what a reader needs.

    run/ranks/rank-0.out         what the rank printed
              rank-0.err         what it and the libraries under it wrote to stderr
              rank-0.error.json  why it failed, if it did
              restart-1/         the same of the ranks that were started again

Rank 0 speaks for all, so its lines come as they are; a line of another rank carries its label.
A line of stderr that several ranks share is printed once, and what torch's C++ side prints when a
rank is lost stays in the files: the ranks themselves say it in a line.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import TextIO

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

KINDS = ("out", "err", "error.json", "traceback")

NOISE = re.compile(
    r"(\[rank\d+\]:)?\[[IWEF]\d{4} |\[/\S+\.cc:\d+\]|"
    r"frame #\d+|Exception raised from|<\w+ \w+> \+ 0x|\s*$"
)


class RankLogs(LogsSpecs):
    """Where the agent sends each rank's output, and what it adds to each rank's environment."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(log_dir=str(folder))
        self.folder, self.environment = folder, dict(environment)
        self.starts = 0
        self.ranks: list[int] = []  # of this machine, as all machines count them
        self.follow: Callable[[RankLogs], None] = lambda logs: None  # called at every start

    @property
    def root_log_dir(self) -> str:
        return str(self.folder)

    @property
    def here(self) -> Path:
        """Where the logs of the latest start are."""
        return self.folder / f"restart-{self.starts - 1}" if self.starts > 1 else self.folder

    def path(self, rank: int, kind: str) -> Path:
        return self.here / f"rank-{rank}.{kind}"

    def files(self, kind: str) -> dict[int, str]:
        return {local: str(self.path(rank, kind)) for local, rank in enumerate(self.ranks)}

    def labels(self) -> dict[int, str]:
        return {local: f"[rank {rank}] " if rank else "" for local, rank in enumerate(self.ranks)}

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self.starts += 1
        self.ranks = [int(envs[local]["RANK"]) for local in sorted(envs)]
        self.here.mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            for path in self.files(kind).values():
                Path(path).unlink(missing_ok=True)
        failures = self.files("error.json")
        for local, variables in envs.items():
            variables.update(
                self.environment,
                TORCHELASTIC_ERROR_FILE=failures[local],
                TORCHELASTIC_USE_AGENT_STORE="True",  # the one the agent makes for each start
            )
        self.follow(self)
        return LogsDest(stdouts=self.files("out"), stderrs=self.files("err"), error_files=failures)

    def clear(self) -> None:
        """Take away what an earlier launch left in the same folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("restart-*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob("rank-*.*"):
            path.unlink(missing_ok=True)

    def last_error_line(self, rank: int) -> str:
        """The last line that a rank wrote to stderr, without noise."""
        path = self.path(rank, "err")
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        own = [line for line in lines if not NOISE.match(line) and not line.startswith(" ")]
        return own[-1] if own else ""


class Screen(io.TextIOBase):
    """Takes labelled lines and passes on those worth reading, each at once."""

    def __init__(self, stream: TextIO, *, stderr: bool) -> None:
        self.stream, self.stderr = stream, stderr
        self.seen: set[str] = set()
        self.turn = Lock()  # each rank's output is read by a thread of their own

    def write(self, line: str) -> int:
        words = re.sub(r"^\[rank \d+\] ", "", line)
        with self.turn:
            if self.stderr and (NOISE.match(words) or words in self.seen):
                return len(line)
            self.seen.add(words if self.stderr else "")
            self.stream.write(line)
            self.stream.flush()
            return len(line)


class WholeLines(io.TextIOBase):
    """Passes on the lines of one file whole, as a program may write them piece by piece."""

    def __init__(self, screen: Screen, label: str) -> None:
        self.screen, self.label = screen, label
        self.begun = ""

    def write(self, piece: str) -> int:
        self.begun += piece
        if piece.endswith("\n"):
            self.screen.write(f"{self.label}{self.begun}")
            self.begun = ""
        return len(piece)

    def end(self) -> None:
        if self.begun:
            self.write("\n")


class FileTail:
    """Shows the lines of a file as they are written, each behind the label."""

    def __init__(self, path: str, screen: Screen, label: str) -> None:
        self.lines = WholeLines(screen, label)
        self.tail = TailLog("shown", {0: path}, self.lines, {0: ""})  # type: ignore[arg-type]
        self.tail.start()

    def stop(self) -> None:
        self.tail.stop()
        self.lines.end()


class LiveLog:
    """Context in which what the ranks write appears on the terminal, start after start."""

    def __init__(self, logs: RankLogs) -> None:
        self.tails: list[FileTail] = []
        self.out = Screen(sys.stdout, stderr=False)
        self.errors = Screen(sys.stderr, stderr=True)
        logs.follow = self.follow

    def follow(self, logs: RankLogs) -> None:
        """Print the latest start's output, after the rest of the one before."""
        self.stop()
        labels = logs.labels()
        self.tails = [
            FileTail(path, screen, labels[local])
            for kind, screen in (("out", self.out), ("err", self.errors))
            for local, path in logs.files(kind).items()
        ]

    def stop(self) -> None:
        for tail in self.tails:
            tail.stop()

    def __enter__(self) -> LiveLog:
        return self

    def __exit__(self, *exit: object) -> None:
        self.stop()
