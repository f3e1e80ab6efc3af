"""A run: the engine, and what users ask of it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, overload

import torch

from stepladder.checkpoint.best import read_ranking
from stepladder.checkpoint.commit import checkpoint_folder
from stepladder.checkpoint.find import as_folder
from stepladder.data import ReadPolicy
from stepladder.errors import DataError, TrainingError
from stepladder.plan import AXES
from stepladder.record import Profile
from stepladder.record.journal_writer import JournalWriter, NullJournal, note_end
from stepladder.track import open_journal
from stepladder.train.checkpointing.registry import Stateful
from stepladder.train.checkpointing.resume import load, resume
from stepladder.train.checkpointing.save import Saver
from stepladder.train.data_loader.stream_feed import open_feed
from stepladder.train.evaluation.evaluate import evaluate_metrics, mean_loss, predict
from stepladder.train.evaluation.evaluation import Evaluation
from stepladder.train.evaluation.metrics import Metric
from stepladder.train.evaluation.observer import Keep
from stepladder.train.health.replica_check import check_replicas
from stepladder.train.reporting.logged_samples import write_sample
from stepladder.train.reporting.logged_values import check_name, check_step, read_number

from .engine import Engine
from .feed import Feed
from .loop import feed
from .pending_report import PendingReport
from .profile_steps import profile
from .step_batch import Rows


@dataclass(slots=True)
class Run(Engine):
    """A module being trained."""

    because: str = ""  # why its plan was chosen, where nobody asked for one
    saver: Saver = field(default_factory=Saver)
    journal: JournalWriter | None = None  # where `log` writes to
    logged: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # step and value
    # Tries plans on the first batch, where none was known before; called with the run and it.
    retune: Callable[[Any, Any], None] | None = None
    tuned_seconds: float | None = None  # of a step in the trials that chose its plan

    def step(self, batch: Any, *, rows: Rows | None = None) -> PendingReport:
        """Learn from one global batch. Every rank calls it; it does not wait for the device.

        Args:
            batch: one of `run.batches`, which knows its rows; or tensors: a pair (inputs, targets),
                a dict with labels, or inputs alone.
            rows: whose rows tensors are, needed where several ranks share the data: "rank" (this
                rank's own, as many on every rank) or "global" (the whole batch on every rank, of
                which each takes its part).
        """
        if self.retune is not None:
            retune, self.retune = self.retune, None
            retune(self, batch)
        return Engine.step(self, batch, rows=rows)

    def batches(
        self,
        source: Any,
        size: int | None = None,
        seed: int = 0,
        *,
        uneven: bool = False,
        stop: int | None = None,
        shuffle: bool | int = True,
        lengths: str | Callable[[int], int] | None = None,
        longest: int | None = None,
        workers: int | str = "auto",
        reading: ReadPolicy | None = None,
    ) -> Feed:
        """This rank's part of the global batches, from where the run stands: the same global
        batches on any number of ranks. After `load` or `resume` they go on from there.

        Args:
            source: samples by index: a list, a tensor, a map-style dataset; or a stream of them.
            size: samples of a global batch, over all ranks; None: as the plan says.
            seed: of the order in which samples come, another one in every epoch.
            uneven: let ranks' parts differ by a row where a batch does not divide by the ranks;
                else such a batch is refused.
            stop: the sample number to end before; None: epoch after epoch without end.
            shuffle: False: in the source's own order; a number: a stream's in blocks of so many.
            lengths: tokens used of each window by step, such as "128@0,512@200".
            longest: tokens a sample may have; a longer one is cut or refused, as `reading` says.
            workers: threads or processes that read ahead: 2, "2 processes", or "auto".
            reading: retries, skipping and padding.
        """
        make = partial(
            feed, self, source, size=size, seed=seed, uneven=uneven, stop=stop, shuffle=shuffle,
            lengths=lengths, longest=longest, workers=workers, reading=reading,
        )  # fmt: skip
        return open_feed(self, make, source, endless=stop is None)

    @overload
    def evaluate(self, data: Iterable[Any], *, rows: Rows | None = None) -> float: ...
    @overload
    def evaluate(
        self,
        data: Iterable[Any],
        *,
        metrics: Mapping[str, Metric],
        keep: Keep | None = None,
        rows: Rows | None = None,
    ) -> Evaluation: ...

    def evaluate(
        self,
        data: Iterable[Any],
        *,
        metrics: Mapping[str, Metric] | None = None,
        keep: Keep | None = None,
        rows: Rows | None = None,
    ) -> float | Evaluation:
        """The mean loss over the valid targets of these batches, without learning; with `metrics`
        an `Evaluation`, which has the loss and each metric by its name. Every rank calls it.

        Args:
            data: batches as in `step`, or a DataLoader, whose batches several ranks share.
            metrics: by name: a function of (outputs, targets), which is called once with those of
                all rows of all ranks, on the CPU; or an object with `update`, `compute` and
                `reset`, as torchmetrics has them.
            keep: what metrics are given of a batch's outputs, such as
                `lambda outputs: outputs.argmax(-1)`; None: all of them.
            rows: as in `step`.
        """
        if metrics is None:
            if keep is not None:
                problem = "picks what metrics are given, and there are none"
                raise DataError("keep", problem, "Give metrics, or leave it out.")
            return mean_loss(self, data, rows)
        return evaluate_metrics(self, data, metrics, keep, rows)

    def predict(
        self, data: Iterable[Any], *, keep: Keep | None = None, rows: Rows | None = None
    ) -> Any:
        """What the module returns in evaluation mode for all rows, in their order, on the CPU.

        Every rank calls it and has all of it. Batches need no targets.

        Args:
            data: as in `evaluate`.
            keep: as in `evaluate`.
            rows: as in `step`.
        """
        return predict(self, data, keep, rows)

    @contextmanager
    def open_journal(
        self, folder: str | Path, track: str | Iterable[str] = ()
    ) -> Iterator[JournalWriter]:
        """Context in which this run has a journal, which `stepladder watch` and `report` read.

        Every rank enters it, and rank 0 writes. `log` writes to it by itself; a step is written
        with `journal.write("step", **report.to_dict())`.

        Args:
            track: trackers that are sent every entry too, such as "tensorboard, wandb".
        """
        folder, writes = as_folder(folder), self.world.is_rank_zero
        with open_journal(folder, track) if writes else nullcontext(NullJournal()) as journal:
            ranks = self.world.place.num_ranks
            journal.write(
                "start", plan=str(self.plan), step=self.index, because=self.because, ranks=ranks
            )
            before, self.journal = self.journal, journal
            try:
                with note_end(journal):
                    yield journal
            finally:
                self.journal = before

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Keep a value under a name, in `logged` and in the run's journal if there is one.

        Every rank may call it; rank 0 writes.

        Args:
            value: a number, or a tensor of one element.
            step: that it belongs to; None: the last one taken.
        """
        step = max(self.index - 1, 0) if step is None else step
        check_name(name)
        check_step(name, step)
        number = read_number(name, value)
        self.logged.setdefault(name, []).append((step, number))
        if self.journal is not None and self.world.is_rank_zero:
            self.journal.write("logged", step=step, name=name, value=number)

    def log_sample(self, name: str, sample: Any, step: int | None = None) -> None:
        """Keep a text, a picture or a batch of pictures in the run's journal, for its page.

        Args:
            sample: a string; or pixels, shaped (height, width), (channels, height, width) or a
                batch of these: bytes, numbers from 0 to 1, or others, which are stretched to that.
            step: as in `log`.
        """
        step = max(self.index - 1, 0) if step is None else step
        check_name(name)
        check_step(name, step)
        write_sample(self.journal, name, step, sample)

    def save(self, folder: str | Path, *, wait: bool = True) -> Path:
        """Write a checkpoint into `folder/step-NNNNNN`; every rank calls it.

        Without `wait` training goes on and the state is copied beside the next batch's passes;
        whoever changes parameters by other means than `step` calls `finish_saving` first, which
        waits for it. A save that fails is then an event of the run.
        """
        folder = as_folder(folder)
        self.agree_on_health()
        self._check_free(checkpoint_folder(folder, self.index))
        return self.saver.save(self, folder, wait=wait)

    def _check_free(self, path: Path) -> None:
        """Refuse to write over a checkpoint that is kept for its value, as rank 0 sees it."""
        best = self.world.is_rank_zero and read_ranking(path) is not None
        candidate = torch.tensor(float(best), device=self.world.device)
        if self.world.max(candidate, *AXES).item():
            problem = f"{path} is kept as one of the best, and has the same step"
            raise TrainingError("folder", problem, "Save into another folder.")

    def profile(
        self,
        batches: Iterable[Any],
        *,
        steps: int = 4,
        folder: str | Path | None = None,
        rows: Rows | None = None,
    ) -> Profile:
        """Where a step's time goes, with a verdict, from 2 · `steps` + 3 real steps of this run.

        Every rank calls it. The trace, for Perfetto or Chrome, is kept in `folder`.
        """
        return profile(self, batches, steps=steps, folder=folder, rows=rows)

    def rewind(self, folder: str | Path) -> Path:
        """Go back to the newest checkpoint, and on from there with data that was not read yet.

        Every rank calls it. The checkpoint is written again with that position in the data.
        """
        self.saver.finish(self.events)
        position, rewinds, streams = self.position, self.health.rewinds, self.reading.streams.copy()
        path = self.load(folder)
        self.position, self.health.rewinds = position, rewinds + 1
        self.reading.saved, self.reading.streams = None, streams  # the data goes on
        self.agree_on_health()
        self.saver.save(self, folder, wait=True)  # over the checkpoint, whoever keeps it
        return path

    def check_copies(self) -> None:
        """Raise where ranks that should hold the same parameters do not; every rank calls it."""
        check_replicas(self.climbed.shards, self.world, self.index)

    def register_for_checkpointing(self, name: str, stateful: Stateful) -> None:
        """Save an object's state with the run, and restore it in `load`, `resume` and `rewind`.

        Every rank registers it, before the checkpoint is loaded; rank 0's state is written.

        Args:
            stateful: anything with `state_dict` and `load_state_dict`, such as `EarlyStopping`. If
                it also has `tensors` and `restart`, as `EMA` has, each of its tensors is saved in
                slices as the parameter of its name is, and loaded in any layout.
        """
        self.registry.add(name, stateful)

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on the disk; raise where it could not be written."""
        self.saver.finish()

    def load(self, folder: str | Path, *, strict: bool = True) -> Path:
        """Go on from a checkpoint, or from the latest of a folder.

        Args:
            strict: refuse a model of the same shapes with other settings, such as its heads.
        """
        path = load(self, as_folder(folder), strict=strict)
        self.saver.resumed = True
        return path

    def resume(self, folder: str | Path, *, strict: bool = True) -> Path | None:
        """Go on from the latest checkpoint of a folder; where it holds none, begin: None.

        Args:
            strict: as in `load`.
        """
        path = resume(self, as_folder(folder), strict=strict)
        self.saver.resumed = self.saver.resumed or path is not None
        return path
