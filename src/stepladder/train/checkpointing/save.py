"""Saving a run and going on from what was saved; the files themselves are the checkpoint package's.

[Note: what training waits for] A save begins to copy what this rank writes into host memory and
returns; a thread copies the rest, writes, hashes and commits. Ranks agree through notes on the
world's rank notes, never through collectives, which belong to the training thread. A second save
waits
for the first. A save that fails costs that checkpoint and nothing else: older ones are untouched
and training goes on.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from torch import Tensor

from stepladder.checkpoint import Manifest, TensorSource, list_checkpoints, read_manifest
from stepladder.checkpoint.best import Ranking
from stepladder.checkpoint.commit import checkpoint_folder, commit, remove_partial
from stepladder.checkpoint.folder_locks import make_folder_locked
from stepladder.checkpoint.integrity import check_complete
from stepladder.checkpoint.manifest import RankFiles, StoredSlice, TensorEntry, merge
from stepladder.checkpoint.safetensors_file import DTYPE_CODES, write_files
from stepladder.errors import RecordError, StepladderError
from stepladder.rungs import is_out_of_memory
from stepladder.train.engine import Engine
from stepladder.world.ranks.rank_notes import RankNotes

from .sharded_state import StateShard
from .snapshot import Snapshot, take_snapshot

WAIT_SECONDS = 1800.0  # for another rank to have written its part


@dataclass(slots=True)
class Saver:
    """Writes a run's checkpoints, one after the other."""

    rank_notes: RankNotes | None = None
    count: int = 0  # saves begun; the same on every rank
    prefix: str = ""  # before every note: another run of this world saves too
    token: str = ""  # tells this process's unfinished folders from those of a run that died
    resumed: bool = False  # whether the run went on from a checkpoint
    thread: threading.Thread | None = None
    failure: StepladderError | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)  # host memory, used again each time
    writers: dict[Path, set[str]] = field(default_factory=dict)  # by folder: runs known to save
    remarks: list[str] = field(default_factory=list)  # events that nobody took yet

    def save(
        self, run: Engine, folder: str | Path, *, wait: bool, ranking: Ranking | None = None
    ) -> Path:
        """Write the run's state; without `wait`, go on as soon as it is copied off the device.

        Args:
            ranking: for a checkpoint that is kept for a value; others are kept by age.
        """
        root = Path(folder)
        final = checkpoint_folder(root, run.index)
        self.finish(run.events)
        self._meet(run)
        self.count += 1
        taken = self._take(run, wait)
        taken.state["run"] = self.token
        if ranking is not None:
            taken.state |= ranking.to_state()
        if wait:
            self._write(run, taken, root, final)
            self.finish(run.events if self.failure is None else None)
        else:
            run.copying = taken.copying
            write = partial(self._write, run, taken, root, final)
            self.thread = threading.Thread(target=write, name="checkpoint")
            self.thread.start()
        return final

    def _take(self, run: Engine, wait: bool) -> Snapshot:
        """What to write; where it cannot be copied, only why: the other ranks wait for a word."""
        try:
            return take_snapshot(run, self.buffers if not wait else None)
        except Exception as refused:
            if is_out_of_memory(refused):
                self.buffers.clear()
                refused = MemoryError(str(refused).partition("\n")[0])
            return Snapshot(run.index, {}, {}, {}, refused=refused)

    def finish(self, events: list[str] | None = None) -> None:
        """Wait for the save in flight; what went wrong with it is an event, or is raised."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if events is not None:
            events += self.remarks
            self.remarks.clear()
        if events is not None and self.failure is not None:
            events.append(f"save failed: {self.failure}")
            self.failure = None
        self._raise()

    def _raise(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _meet(self, run: Engine) -> None:
        if self.rank_notes is not None:
            return
        self.rank_notes = run.world.notes
        rank = run.world.place.rank
        self.prefix = (
            f"saver/{self.rank_notes.store.add(f'savers/{rank}', 1)}"  # of this rank, in order
        )
        if run.world.is_rank_zero:
            self.rank_notes.post(f"{self.prefix}/token", uuid4().hex[:8])
        self.token = self.rank_notes.read(f"{self.prefix}/token", WAIT_SECONDS)

    def _write(self, run: Engine, taken: Snapshot, root: Path, final: Path) -> None:
        """Everything after the copy: runs in the thread, and never raises there."""
        with ExitStack() as writing:
            self._write_locked(run, taken, root, final, writing)

    def _write_locked(
        self, run: Engine, taken: Snapshot, root: Path, final: Path, writing: ExitStack
    ) -> None:
        assert self.rank_notes is not None
        partly = root / f".{final.name}.{self.token}"
        rank, ranks = run.world.place.rank, run.world.place.num_ranks
        note = f"{self.prefix}/{self.count}"
        try:
            if taken.refused:
                raise taken.refused
            if taken.copying is not None:
                taken.copying.finish()
            # Until the end, whoever commits it: another process takes it for abandoned otherwise.
            writing.enter_context(make_folder_locked(partly))
            part = write_part(taken, partly)
            self.rank_notes.post(f"{note}/{rank}", merge([part], taken.state, ranks).to_json())
        except Exception as refused:  # whatever it is, the other ranks wait for a word
            self.failure = refusal(final, refused)
            with suppress(Exception):  # the store may have gone with its machine
                self.rank_notes.post(f"{note}/{rank}", f"failed: {self.failure}")
        try:
            if rank == 0:
                self.rank_notes.post(f"{note}/end", self._commit(taken, note, partly, final, ranks))
            self._learn(self.rank_notes.read(f"{note}/end", WAIT_SECONDS))
        except Exception as alone:
            self.failure = self.failure or refusal(final, alone)

    def _commit(self, taken: Snapshot, note: str, partly: Path, final: Path, ranks: int) -> str:
        """Put every rank's part together; what became of it, in words for all."""
        assert self.rank_notes is not None
        try:
            parts = [self.rank_notes.take(f"{note}/{rank}", WAIT_SECONDS) for rank in range(ranks)]
            failed = [text for text in parts if text.startswith("failed: ")]
            if failed:
                shutil.rmtree(partly, ignore_errors=True)
                return failed[0]
            manifests = [Manifest.from_json(text, partly) for text in parts]
            whole = merge(
                [RankFiles(dict(m.files), dict(m.tensors)) for m in manifests], taken.state, ranks
            )
            check_complete(partly, whole)  # or it could never be loaded
            self._notice_others(final.parent)
            commit(partly, final, whole)
            remove_partial(final.parent)
        except Exception as refused:
            shutil.rmtree(partly, ignore_errors=True)
            return f"failed: {refusal(final, refused)}"
        return "written"

    def _notice_others(self, root: Path) -> None:
        """Report, once, that another run saves into this folder since this one began to."""
        written = newest_writer(root)
        known = self.writers.setdefault(root, {written, self.token, ""})
        if written not in known:
            known.add(written)
            self.remarks.append(
                f"another run saves into {root} too, and the checkpoints of one replace the "
                "other's: name a folder for each"
            )

    def _learn(self, end: str) -> None:
        if end != "written" and self.failure is None:
            self.failure = RecordError(
                "checkpoint", "another rank could not write its part", end.removeprefix("failed: ")
            )


def newest_writer(root: Path) -> str:
    """Which run wrote the folder's newest checkpoint, by its token; empty where nobody knows."""
    for path in list_checkpoints(root)[:1]:
        with suppress(OSError, StepladderError):
            return str(read_manifest(path).state.get("run") or "")
    return ""


def write_part(taken: Snapshot, partly: Path) -> RankFiles:
    """Write this rank's files, and say what is where."""
    check_space(partly, taken)
    sources = {
        partly / name: [TensorSource.of(key, tensor) for key, tensor in file.items()]
        for name, file in taken.files.items()
    }
    written = write_files(sources)
    tensors = {name: stored(shards) for name, shards in taken.places.items()}
    return RankFiles({path.name: one for path, one in written.items()}, tensors)


def stored(shards: list[tuple[StateShard, str, str]]) -> TensorEntry:
    first = shards[0][0]
    where = tuple(StoredSlice(shard.slice, file, key) for shard, file, key in shards)
    return TensorEntry(first.shape, DTYPE_CODES[first.tensor.dtype], where)


def check_space(folder: Path, taken: Snapshot) -> None:
    needed = sum(tensor.nbytes for file in taken.files.values() for tensor in file.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        unit, name = (2**20, "MiB") if needed > 10 * 2**20 else (2**10, "KiB")
        raise RecordError(
            "checkpoint",
            f"{folder.parent} has {free / unit:.0f} {name} free and this rank writes "
            f"{needed / unit:.0f}",
            "Free some space or name another folder; older checkpoints are untouched.",
        )


def refusal(final: Path, refused: Exception) -> StepladderError:
    if isinstance(refused, StepladderError):
        return refused
    said = str(refused).partition("\n")[0]
    if not isinstance(refused, OSError | MemoryError | RuntimeError):
        said = f"{type(refused).__name__}: {said}"
    reason = getattr(refused, "strerror", None) or said
    return RecordError(
        "checkpoint",
        f"{final} cannot be written ({reason})",
        "Free some space or name another folder; older checkpoints are untouched.",
    )
