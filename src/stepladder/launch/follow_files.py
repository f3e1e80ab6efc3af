"""Follows files that another process writes, and prints their new lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from stepladder.launch.local.rank_logs import Screen


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
        named = {index: str(path) for index, path in enumerate(files)}
        whose = {index: (labels or {}).get(index, "") for index in named}
        screen = Screen(stream, stderr=stderr)
        self._tail = TailLog("shown", named, screen, whose)  # type: ignore[arg-type]

    def __enter__(self) -> FollowedFiles:
        self._tail.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tail.stop()
