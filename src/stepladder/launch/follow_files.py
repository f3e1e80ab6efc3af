"""Files that somebody else writes, shown on the terminal as they grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from stepladder.launch.local.rank_logs import Screen


class Shown:
    """Context in which the lines of some files appear; a file may come later, or never.

    Args:
        labels: what stands before a file's lines, in the order of the files; none: nothing.
        complaints: whether the lines are what ranks complain of, of which some are noise.
    """

    def __init__(
        self,
        files: Sequence[Path],
        stream: TextIO,
        labels: Mapping[int, str] | None = None,
        *,
        complaints: bool = False,
    ) -> None:
        named = {index: str(path) for index, path in enumerate(files)}
        whose = {index: (labels or {}).get(index, "") for index in named}
        screen = Screen(stream, complaints=complaints)
        self._tail = TailLog("shown", named, screen, whose)  # type: ignore[arg-type]

    def __enter__(self) -> Shown:
        self._tail.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tail.stop()
