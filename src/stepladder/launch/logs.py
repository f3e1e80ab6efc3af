"""What ranks say: every word in files of their own, and on the terminal what a reader needs.

    run/ranks/rank-0.out         what the rank printed
              rank-0.err         what it and the libraries under it complained of
              rank-0.error.json  why it failed, if it did

Rank 0 speaks for all, so its lines come as they are; a line of another rank carries its label.
A complaint that several ranks share is shown once, and what torch's C++ side prints when a rank is
lost stays in the files: the ranks themselves say it in a line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

NOISE = re.compile(
    r"(\[rank\d+\]:)?\[[IWEF]\d{4} |\[/\S+\.cc:\d+\]|"
    r"frame #\d+|Exception raised from|<\w+ \w+> \+ 0x|\s*$"
)


class RankLogs(LogsSpecs):
    """Where the agent sends each rank's output, and what it adds to each rank's environment."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(log_dir=str(folder))
        self.folder, self.environment = folder, dict(environment)

    @property
    def root_log_dir(self) -> str:
        return str(self.folder)

    def path(self, rank: int, kind: str) -> Path:
        return self.folder / f"rank-{rank}.{kind}"

    def files(self, ranks: int, kind: str) -> dict[int, str]:
        return {rank: str(self.path(rank, kind)) for rank in range(ranks)}

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        failures = self.files(len(envs), "error.json")
        for rank, variables in envs.items():
            variables.update(self.environment, TORCHELASTIC_ERROR_FILE=failures[rank])
        return LogsDest(
            stdouts=self.files(len(envs), "out"),
            stderrs=self.files(len(envs), "err"),
            error_files=failures,
        )

    def clear(self, ranks: int) -> None:
        """Take away what an earlier start left in the same folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for kind in ("out", "err", "error.json", "traceback"):
            for rank in range(ranks):
                self.path(rank, kind).unlink(missing_ok=True)

    def last_words(self, rank: int) -> str:
        """The last line a rank complained in."""
        path = self.path(rank, "err")
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        own = [line for line in lines if not NOISE.match(line) and not line.startswith(" ")]
        return own[-1] if own else ""


class Screen(io.TextIOBase):
    """Takes labelled lines and passes on those worth reading, each at once."""

    def __init__(self, stream: TextIO, *, complaints: bool) -> None:
        self.stream, self.complaints = stream, complaints
        self.seen: set[str] = set()

    def write(self, line: str) -> int:
        words = re.sub(r"^\[rank \d+\] ", "", line)
        if self.complaints and (NOISE.match(words) or words in self.seen):
            return len(line)
        self.seen.add(words if self.complaints else "")
        self.stream.write(line)
        self.stream.flush()
        return len(line)


def labels(ranks: int) -> dict[int, str]:
    return {rank: f"[rank {rank}] " if rank else "" for rank in range(ranks)}
