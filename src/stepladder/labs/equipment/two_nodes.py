"""Two nodes of two ranks each under torch's elastic agents, one of which may lose power.

`train(folder)` is called on four processes with torchrun's variables, as `torchrun --nnodes 2
--nproc-per-node 2 --max-restarts 1` would. Losing power is SIGKILL to both ranks of a node at once,
after an update that the caller names. The node's agent lives on and stands for the scheduler that
gives the node back: so nothing here waits for a time to be over.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from traceback import FrameSummary

import psutil
from torch import nn
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from stepladder.errors import WorldError
from stepladder.seam.inductor import import_compiler

from .step_notes import File, Note, StepNotes, digest, files_in, read_notes

NODES, RANKS_EACH = 2, 2
RANKS = NODES * RANKS_EACH
LOST_RANKS = (2, 3)  # of the second node
LOOK_SECONDS = 0.02

Train = Callable[[Path], nn.Module]


@dataclass(frozen=True, slots=True)
class NodeRun:
    """What became of a run."""

    starts: list[list[list[Note]]] = field(default_factory=list)  # by start, then by rank
    final: list[str] = field(default_factory=list)  # digest of each rank's parameters; none: failed
    error: WorldError | None = None  # why it did not reach its end
    seconds: float = 0.0
    files: frozenset[File] = frozenset()  # every file that lay in its folder

    @property
    def updates(self) -> list[int]:
        """How many updates each start made."""
        return [max(map(len, ranks)) for ranks in self.starts]

    @property
    def saved_bytes(self) -> int:
        return sum(size for _, _, _, size in self.files)

    def saved_after(self) -> list[int]:
        """After how many updates of the first start there was a new file."""
        notes, seen, found = self.starts[0][0], set[File](), []
        for made, note in enumerate(notes):
            if set(note.files) - seen:
                found.append(made)
            seen |= set(note.files)
        return found


def run_on_two_nodes(train: Train, lost_after: int | None = None) -> NodeRun:
    """Run to the end; a node is lost after so many updates, if a number is given."""
    import_compiler()  # an optimizer's first step needs it: once here rather than on every rank
    context, began = get_context("fork"), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        for inner in ("notes", "saves", "waiting", "final", "errors", "logs"):
            (room / inner).mkdir()
        agents = [
            context.Process(target=agent, args=(room, node, train, lost_after))
            for node in range(NODES)
        ]
        try:
            for each in agents:
                each.start()
            if lost_after is not None:
                lose_node(room, agents)
            for each in agents:
                each.join()
        finally:
            end(agents)
        return what_became(room, time.monotonic() - began)


def agent(room: Path, node: int, train: Train, lost_after: int | None) -> None:
    """A node: starts its ranks, and once more all together if some are lost."""
    logging.disable(logging.CRITICAL)  # it says at length that ranks were lost
    # Restarted ranks must not meet at the store of those before them.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    (room / "logs" / str(node)).mkdir()
    how = LaunchConfig(
        min_nodes=NODES, max_nodes=NODES, nproc_per_node=RANKS_EACH, run_id="lab",
        rdzv_backend="c10d", rdzv_endpoint=str(room / "rendezvous"),
        rdzv_configs={"store_type": "file", "keep_alive_max_attempt": 60}, max_restarts=1,
        monitor_interval=0.05, start_method="fork", local_addr="127.0.0.1",
        logs_specs=DefaultLogsSpecs(log_dir=str(room / "logs" / str(node))),
    )  # fmt: skip
    with suppress(ChildFailedError):  # its ranks have left word of their errors
        elastic_launch(how, rank_of_node)(room, train, lost_after)


def rank_of_node(room: Path, train: Train, lost_after: int | None) -> None:
    """One rank of one start, in a process of its own."""
    rank, begun = int(os.environ["RANK"]), time.monotonic_ns()

    def after(updates: int) -> None:
        if updates == lost_after and rank in LOST_RANKS and not (room / "lost").exists():
            (room / "waiting" / str(os.getpid())).touch()
            signal.pause()  # until the power is gone

    try:
        with StepNotes(room / "notes" / f"{begun:020}-{rank}", room / "saves", after):
            model = train(room / "saves")
        (room / "final" / str(rank)).write_text(digest(model.parameters()))
    except BaseException as raised:
        leave_word(room / "errors" / f"{begun:020}-{rank}", raised)
        raise


def leave_word(path: Path, raised: BaseException) -> None:
    frames = [
        f"{frame.filename}\t{frame.lineno}\t{frame.name}"
        for frame in traceback.extract_tb(raised.__traceback__)
    ]
    path.write_text("\n".join([f"{type(raised).__name__}: {raised}".splitlines()[0], *frames]))


def lose_node(room: Path, agents: Sequence[BaseProcess]) -> None:
    """Kill both ranks of a node as soon as both have made their last update."""
    while all(each.is_alive() for each in agents):
        waiting = [int(path.name) for path in (room / "waiting").iterdir()]
        if len(waiting) == len(LOST_RANKS):
            (room / "lost").touch()
            for pid in waiting:
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(LOOK_SECONDS)


def end(agents: Sequence[BaseProcess]) -> None:
    """Leave no process behind, however the run was left."""
    for each in agents:
        with suppress(psutil.Error):
            for process in (*psutil.Process(each.pid).children(recursive=True), each):
                with suppress(psutil.Error):
                    process.kill()
        if each.pid is not None:
            each.join()


def what_became(room: Path, seconds: float) -> NodeRun:
    by_rank: list[list[Path]] = [[] for _ in range(RANKS)]
    for path in sorted((room / "notes").iterdir()):
        by_rank[rank_of(path)].append(path)
    starts = [[read_notes(path) for path in paths] for paths in zip(*by_rank)]
    noted = (note for ranks in starts for notes in ranks for note in notes)
    files = frozenset(file for note in noted for file in note.files)
    files |= set(files_in(room / "saves"))
    final = [path.read_text() for path in sorted((room / "final").iterdir())]
    if len(final) == RANKS:
        return NodeRun(starts, final, seconds=seconds, files=files)
    last = {paths[-1].name for paths in by_rank if paths}
    words = [path for path in (room / "errors").iterdir() if path.name in last]
    return NodeRun(starts, error=first_error(words), seconds=seconds, files=files)


def rank_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def first_error(words: list[Path]) -> WorldError:
    """What the first of these ranks to fail said, with the lines where it was."""
    remedy = "Try one start without a failure first: torchrun --nproc-per-node 4."
    if not words:
        return WorldError("ranks", "a rank ended without a word", remedy)
    first = min(words, key=lambda path: path.stat().st_mtime_ns)
    said, *frames = first.read_text().splitlines()
    error = WorldError("ranks", f"rank {rank_of(first)} of {RANKS} failed with {said}", remedy)
    where = [frame.split("\t") for frame in frames]
    error.frames = [  # type: ignore[attr-defined]  # a learner is shown their own lines
        FrameSummary(file, int(line), name) for file, line, name in where
    ]
    return error
