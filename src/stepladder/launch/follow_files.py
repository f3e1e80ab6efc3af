"""Follows files that another process writes, and prints their new lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from stepladder.launch.local.rank_logs import FileTail, Screen


class FollowedFiles:
    """Context in which the lines of some files appear; a file may come later, or never.

    Args:
        labels: what stands before a file's lines, in the order of the files; none: nothing.
        stderr: whether the lines are error output, of which some are noise.
    """

    def __init__(
        self,
        files: Sequence[Path],
        stream: TextIO,
        labels: Mapping[int, str] | None = None,
        *,
        stderr: bool = False,
    ) -> None:
        self.files, self.labels = files, labels or {}
        self.screen = Screen(stream, stderr=stderr)
        self.tails: list[FileTail] = []

    def __enter__(self) -> FollowedFiles:
        self.tails = [
            FileTail(str(path), self.screen, self.labels.get(index, ""))
            for index, path in enumerate(self.files)
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for tail in self.tails:
            tail.stop()
