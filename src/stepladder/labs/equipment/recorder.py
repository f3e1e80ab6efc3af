"""What a learner's own code did, noted from outside: messages, operations and memory, by rank.

A line of JSON for each operation that communicates or changes the memory held, written at once: so
that what a rank did before it was lost is known, too. Times are of the machine's one clock, which
its processes share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from stepladder.measure.collective_traffic import NAMES, size, ways
from stepladder.seam.dispatch import in_backward, operator_name

from .rank_memory_limit import MemoryLimit

FOLDER = "STEPLADDER_LAB_RECORD"  # the environment variable that says where to write
RECEIVES = ("recv_", "recv_any_source_")
OTHERS = {"alltoall_": "all_to_all", "alltoall_base_": "all_to_all", "barrier": "barrier"}
MOST = 20_000  # lines of a rank: a picture shows no more


class Recorder(MemoryLimit):
    """Context that writes a line for each operation worth drawing."""

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__()
        self.file, self.rank, self.held, self.count = path.open("a"), rank, -1, 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begun = time.perf_counter()
        result = super().__torch_dispatch__(op, types, args, kwargs)
        if result is not NotImplemented and self.count < MOST:
            self.note(op, args, begun)
        return result

    def note(self, op: Any, args: Any, begun: float) -> None:
        event: dict[str, Any] = {"rank": self.rank, "at": begun, "backward": in_backward()}
        if op.namespace == "c10d" and (kind := kind_of(operator_name(op))):
            event |= {"kind": kind, "bytes": max(map(size, args), default=0), "ways": ways(args)}
            if kind in ("send", "recv"):
                event["peer"] = next((one for one in args if isinstance(one, int)), None)
        held = self.live_bytes
        if "kind" in event or held != self.held:
            self.held, event["held"] = held, held
            self.file.write(json.dumps(event) + "\n")
            self.file.flush()
            self.count += 1


def kind_of(name: str) -> str | None:
    return "recv" if name in RECEIVES else NAMES.get(name) or OTHERS.get(name)


@contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Block in which this process is recorded, and not the ranks that it starts."""
    with Recorder(folder / "000-0.jsonl", 0):
        yield


@contextmanager
def ranks_recorded(folder: Path) -> Iterator[None]:
    """Block in which all ranks that are started are recorded."""
    os.environ[FOLDER] = str(folder)
    try:
        yield
    finally:
        del os.environ[FOLDER]


def with_recorder(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, recorded on each rank where somebody asked for that."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return function
    act = len({path.name[:3] for path in Path(folder).glob("*.jsonl")}) + 1
    return partial(call_recorded, function, Path(folder), act)


def call_recorded(function: Callable[..., Any], folder: Path, act: int, *args: Any) -> Any:
    rank = int(os.environ["RANK"])
    with Recorder(folder / f"{act:03d}-{rank}.jsonl", rank):
        return function(*args)


def read_acts(folder: Path) -> list[dict[int, list[dict[str, Any]]]]:
    """What was recorded: for each start of ranks, the events of each rank."""
    acts: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        act, rank = path.stem.split("-")
        lines = path.read_text().splitlines()
        acts.setdefault(act, {})[int(rank)] = [json.loads(line) for line in lines]
    return list(acts.values())
