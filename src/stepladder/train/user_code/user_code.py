"""Where the user's own module, data and loss are, and what is found there.

Only the module has to be named. Where its file also has a function called `data`, `batch` or
`loss`, that is taken for what was not named, and `UserCode.taken` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from stepladder.data import Arrays, Source
from stepladder.data.open_source import FOLDER_WORDS
from stepladder.data.source import as_source
from stepladder.data.streams.stream_batches import is_stream
from stepladder.data.streams.streamed_source import StreamedSource
from stepladder.data.validation_split import SplitSource
from stepladder.errors import DataError, PlanError
from stepladder.plan.reference import Reference

from .batch_as_source import rows_of
from .import_code import call_named, find_function, find_named, has_function, import_place
from .user_model import model_reference

LossFunction = Callable[[Any, Any], torch.Tensor]
OWN = "own"  # in the place of a loss: the module's output holds it
BESIDE = {"data": "data", "sample": "batch", "loss": "loss"}  # what a function is usually called


@dataclass(frozen=True, slots=True)
class UserCode:
    """Texts that name a module, its data and its loss; empty where nothing is named."""

    model: str
    sample: str = ""  # one batch, as `run.step` takes it, whose rows are then the data
    data: str = ""  # samples addressed by index, or a pair of such: training, validation
    loss: str = ""  # a name that `climb` knows, "own", or a reference
    taken: str = ""  # what was found beside the module without being named, as a sentence

    def __str__(self) -> str:
        return self.model

    def complete(self, *, loss: bool = True) -> UserCode:
        """With what stands beside the module for what was not named.

        Args:
            loss: whether one is used.
        """
        self.check()
        reference = model_reference(self.model)
        if reference is None:
            return self
        import_place(reference, "model")  # what is wrong with it is the model's
        wanted = [] if self.data or self.sample else ["data", "sample"]
        wanted += ["loss"] if loss and not self.loss else []
        found = {
            field: str(beside)
            for field in wanted
            if has_function(beside := reference.beside(BESIDE[field]), field)
        }
        if "data" in found:
            found.pop("sample", None)
        if not found:
            return self
        names = " and ".join(text.rpartition(":")[2] for text in found.values())
        return replace(self, **found, taken=f"Using {names} of {reference.place}.")

    def absolute(self) -> UserCode:
        """The same for ranks, which may work in another folder."""
        model, data = model_reference(self.model), data_reference(self.data)
        return replace(
            self,
            model=str(model.absolute()) if model else self.model,
            data=str(data.absolute()) if data else self.data,
            sample=absolute(self.sample),
            loss=absolute(self.loss),
        )

    def check(self) -> None:
        """Refuse a batch beside data, and a batch that no reference leads to."""
        if self.sample and self.data:
            problem = f"{self.sample} is one batch that stands in for data, and data is named too"
            raise PlanError("sample", problem, "Leave one of them out.")
        if self.sample and Reference.parse(self.sample) is None:
            problem = f"'{self.sample}' does not name a batch of yours"
            raise PlanError("sample", problem, "Write file.py:name or package.module:name.")

    def samples(self) -> tuple[Source, Source] | None:
        """Samples to train on and to validate with; None where nothing of the user's is named."""
        if reference := data_reference(self.data):
            return read_data(reference)
        if reference := Reference.parse(self.sample):
            rows = read_batch(reference)
            return rows, rows
        return None

    def training_samples(self) -> Source | None:
        """Samples for the model; None for a built-in one without any, which has its own."""
        found = self.samples()
        if found is None and (reference := model_reference(self.model)):
            find_function(reference, "model")  # a name that is not there is reported first
            raise DataError(
                "data",
                f"{self.model} is a module without samples, and its file has no data or batch",
                "Name some: --data, or --sample for one batch.",
            )
        return found and found[0]

    def read_loss(self, samples: Source) -> str | LossFunction | None:
        """What `climb` takes as a loss.

        Where none is named: the module's own for samples of the user's that are dicts, whose
        labels the module is given; cross-entropy for all others.
        """
        if not self.loss:
            own = bool(self.sample or data_reference(self.data))
            return None if own and isinstance(samples[0], dict) else "cross_entropy"
        reference = Reference.parse(self.loss)
        if reference is None:
            return None if self.loss == OWN else self.loss
        found = find_function(reference, "loss")
        makes = isinstance(found, type) and issubclass(found, nn.Module)
        return call_named(reference, "loss") if makes else found


def absolute(text: str) -> str:
    reference = Reference.parse(text)
    return str(reference.absolute()) if reference else text


def data_reference(text: str) -> Reference | None:
    """Where data of the user's own is; None for a folder, files or a word such as `text:FOLDER`."""
    return Reference.parse(text, taken=FOLDER_WORDS)


def read_named(reference: Reference, field: str) -> Any:
    """What was named, called where it is a function."""
    found = find_named(reference, field)
    return call_named(reference, field) if callable(found) else found


def read_batch(reference: Reference) -> Source:
    given = read_named(reference, "sample")
    try:
        return rows_of(given)
    except DataError as refused:
        problem = f"{reference} is no batch ({refused.problem})"
        raise DataError("sample", problem, refused.remedy) from refused


def read_data(reference: Reference) -> tuple[Source, Source]:
    """The training and the validation samples; of one source a tenth is held out, of a stream its
    first samples."""
    given = read_named(reference, "data")
    if isinstance(given, DataLoader):
        problem = f"{reference} is a DataLoader, and the plan decides who reads which rows"
        raise DataError("data", problem, "Return its dataset.")
    pair = isinstance(given, tuple) and len(given) == 2
    columns = pair and all(isinstance(one, torch.Tensor) for one in given)  # inputs and targets
    try:
        if pair and is_stream(given[0]):
            return StreamedSource(given[0], train_on_all=True), as_source(given[1])
        if is_stream(given):
            streamed = StreamedSource(given)
            return streamed, streamed.first
        if pair and not columns:
            return as_source(given[0]), as_source(given[1])
        source = Arrays(*given) if columns else as_source(given)
    except DataError as refused:
        problem = f"{reference} cannot be read ({refused.problem})"
        raise DataError("data", problem, refused.remedy) from refused
    return SplitSource(source, "train"), SplitSource(source, "validation")
