"""The samples of a stream one after another, epoch after epoch, from any cursor."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from inspect import isfunction
from typing import Any

import numpy as np

from stepladder.data.loading.sample_seeds import SampleSeeds, seed_generators
from stepladder.errors import DataError, StepladderError

from .sample_hash import hash_samples
from .stream_place import Cursor, keeps_position

DATASETS_STATE = "_starting_state_dict"  # where a dataset of Hugging Face keeps what was loaded
EPOCHS = 0x45504F4348  # tells the seeds of epochs from those of samples


class StreamSamples:
    """Reads a stream, which begins again where it ends unless it can be gone through only once.

    Each sample is read with the generators of torch, numpy and Python seeded by its number, so that
    what a stream draws is the same on every rank and after a resume.
    """

    def __init__(self, stream: Any, seed: int) -> None:
        self.stream, self.kind = stream, type(stream).__name__
        draws = getattr(stream, "parallel", False) is not True  # as a source says it
        self.seeds = SampleSeeds(seed) if draws else None
        self.own_state = keeps_position(stream)
        self.once = is_spent_by_reading(stream)
        kept = self.own_state and not hasattr(stream, DATASETS_STATE)
        self.untouched = stream.state_dict() if kept else None
        self.samples: Iterator[Any] | None = None
        self.at = Cursor()  # of the next sample, without a state
        self.moved = False  # it stands elsewhere than an untouched stream would
        self.ended = False
        self.notes: list[str] = []  # what its reader is to report

    def cursor(self) -> Cursor:
        """Where the next sample is."""
        begun = self.own_state and self.at.index > 0
        return replace(self.at, state=deepcopy(self.stream.state_dict())) if begun else self.at

    def seek(self, cursor: Cursor) -> None:
        """Be at a cursor, by the stream's own state or by reading from the epoch's beginning."""
        if self.once:
            return self._read_on(cursor)
        self.samples, self.ended = None, False
        if cursor.state is not None and self.own_state:
            self._open(replace(cursor, state=None), cursor.state)
            self.notes.append(
                f"the stream {self.kind} goes on from its own state, at sample {cursor.index:,} of "
                f"epoch {cursor.epoch}"
            )
            return None
        start = Cursor(cursor.epoch, 0, cursor.count - cursor.index)
        self._open(start, None)
        if cursor.index:
            self._pass_over(cursor)
        return None

    def read(self) -> Any:
        """The next sample, or END where the epoch ends; the one after it begins the next."""
        if self.samples is None and not self.ended:
            self._open(self.at, None)
        sample = END if self.ended else self._read()
        if sample is END and not self.ended:
            self._end_epoch()
        return sample

    def _read(self) -> Any:
        assert self.samples is not None
        self._seed(self.at.count)
        try:
            sample = next(self.samples, END)
        except StepladderError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        if sample is not END:
            first = self.at.first or hash_samples(sample)
            at = self.at
            self.at = replace(at, index=at.index + 1, count=at.count + 1, first=first)
            self.moved = True
        return sample

    def _end_epoch(self) -> None:
        at = self.at
        if not at.count:
            raise DataError("stream", f"{self.kind} has no sample", "Give at least one.")
        if self.once or not at.index:  # spent: an epoch without a sample would repeat for ever
            self.ended = True
        self.samples, self.moved = None, False
        self.at = Cursor(at.epoch + 1, 0, at.count)

    def _open(self, cursor: Cursor, state: Any) -> None:
        """Begin the epoch of a cursor, or go on in it from the stream's own state."""
        self.at = cursor
        try:
            if hasattr(self.stream, "set_epoch"):
                self.stream.set_epoch(cursor.epoch)
            if state is not None:
                self.stream.load_state_dict(state)
            elif self.own_state and self.moved:
                self._forget_state()
            self.moved = state is not None
            self._seed(cursor.epoch ^ EPOCHS)
            self.samples = iter(self.stream)
        except StepladderError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def _forget_state(self) -> None:
        """Have a stream that was left in the middle begin anew."""
        if self.untouched is not None:
            self.stream.load_state_dict(self.untouched)
        else:
            forget_loaded_state(self.stream)

    def _pass_over(self, cursor: Cursor) -> None:
        """Read again what was read of this epoch before."""
        passed = 0
        while self.at.index < cursor.index and self._read() is not END:
            passed += 1
        why = "" if self.own_state else ", as it has no state that leads back to the next one"
        self.notes.append(
            f"{passed:,} samples of the stream {self.kind} were read again from the start of epoch "
            f"{cursor.epoch}{why}"
        )
        if passed < cursor.index:
            before = f"{cursor.index:,} or more samples before"
            self.notes.append(f"the stream {self.kind} had {before}, and has {passed:,} now")
        elif cursor.first and self.at.first != cursor.first:
            self.notes.append(
                f"the stream {self.kind} begins with another sample than before the checkpoint: "
                "rows may be lost or repeated. Have its order follow from a seed"
            )

    def _read_on(self, cursor: Cursor) -> None:
        """Go forward in an iterator, which is made anew by a process that resumes."""
        if self.samples is None:
            self.samples = iter(self.stream)
        if cursor.count < self.at.count:
            raise DataError(
                "stream",
                f"{self.kind} stands at sample {self.at.count:,} and cannot go back to "
                f"{cursor.count:,}",
                "Give a class whose __iter__ begins anew, or load in a new process.",
            )
        if cursor.count > self.at.count:
            self._pass_over(cursor)

    def _seed(self, number: int) -> None:
        if self.seeds is not None:
            seed_generators(self.seeds.at(np.array([number]))[0])

    def _failed(self, error: Exception) -> DataError:
        return DataError(
            f"sample {self.at.count} ({self.kind})",
            f"cannot be read ({type(error).__name__}: {error})",
            "Mend it, or have the stream leave it out: after an error a stream cannot go on.",
        )


class End:
    """What stands for no sample."""


END = End()


def forget_loaded_state(stream: Any) -> None:
    """Have a dataset of Hugging Face begin its next reading of this epoch at the beginning.

    It would begin each of them with the state that was loaded last.
    """
    if getattr(stream, DATASETS_STATE, None) is not None:
        setattr(stream, DATASETS_STATE, None)


def is_spent_by_reading(stream: Any) -> bool:
    """Whether it is an iterator that cannot begin again, such as a generator or a `map`.

    A class of a user's may begin again in its `__iter__`, also where that returns the object.
    """
    return hasattr(stream, "__next__") and not isfunction(getattr(type(stream), "__iter__", None))
