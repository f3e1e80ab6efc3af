"""Sources: anything with a length and a sample for every index.

A sample is a tensor, or a tuple or dict of tensors; numpy arrays and plain numbers count as
tensors. So a list, a tensor and any map-style torch `Dataset` are sources as they stand. A source
may offer more:

    fetch(indices) -> batch     many samples at once, already stacked
    order(seed, shuffle)        its own sample order (a mixture has one)
    block, blocks_together      samples that are decoded at once, and how many such blocks to
                                shuffle together; without them every order costs the same
    where(index) -> str         the file behind a sample, for messages
    parallel = True             reading from several threads at once is safe and pays; no
                                sample draws from the generators of torch, numpy or Python

A stream is none: without an index there is no sample number p. The package `streams` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DataLoader

from stepladder.errors import DataError

from .locality_order import LocalityOrder
from .sample_order import Integers, SampleOrder


@runtime_checkable
class Source(Protocol):
    """Samples addressed by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Arrays:
    """A source of rows from arrays or tensors of one length: `Arrays(x, y)`."""

    def __init__(self, *columns: Any) -> None:
        if not columns:
            raise DataError("arrays", "no array was given", "Call it as Arrays(x, y).")
        self.columns = tuple(torch.as_tensor(column) for column in columns)
        lengths = [len(column) if column.dim() else 0 for column in self.columns]
        if len(set(lengths)) > 1:
            raise DataError(
                "arrays",
                f"the arrays have {_list(lengths)} rows",
                f"Cut them to {min(lengths)} rows.",
            )

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns[0].dim() else 0

    def __getitem__(self, index: int) -> Any:
        return _one(tuple(column[index] for column in self.columns))

    def fetch(self, indices: Integers) -> Any:
        rows = torch.from_numpy(np.ascontiguousarray(indices))
        return _one(tuple(column[rows] for column in self.columns))


def as_source(data: Any) -> Source:
    """Return the data if it can be addressed by index; otherwise raise with the reason."""
    kind = type(data).__name__
    if isinstance(data, (str, PathLike)):
        raise DataError(
            "source",
            f"'{data}' is a path, not samples",
            "Open it: TokenFile, text_corpus or ImageFolder.",
        )
    if isinstance(data, DataLoader):
        problem = f"a {kind} makes batches itself"
        raise DataError("source", problem, "Give it to sl.fit as it is, or its dataset here.")
    if isinstance(data, Mapping):
        raise DataError("source", f"a {kind} has keys, not positions", _remedy_for_mapping(data))
    if not _addressable(data):
        raise DataError(
            "source",
            f"{kind} has no length and index, so no sample can be addressed by its position",
            "Give a stream to run.batches, a list of its samples, list(...), or write its tokens "
            "to a file for TokenFile.",
        )
    if len(data) == 0:
        raise DataError("source", f"{kind} is empty", "Give at least one sample.")
    return data


def order_of(source: Source, seed: int, shuffle: bool) -> Any:
    """The source's own sample order if it has one, else every index once per epoch."""
    own = getattr(source, "order", None)
    if callable(own):
        return own(seed, shuffle)
    if shuffle and (block := getattr(source, "block", 0)):
        return LocalityOrder(len(source), block, getattr(source, "blocks_together", 1), seed)
    return SampleOrder(len(source), seed, shuffle)


def _remedy_for_mapping(data: Mapping[Any, Any]) -> str:
    """The remedy for a mapping: a table of columns, or of splits such as a `DatasetDict`."""
    parts = [key for key, part in data.items() if _addressable(part) and hasattr(part, "features")]
    return f"Give one of its parts: data[{parts[0]!r}]." if parts else "Use Arrays(x, y) or a list."


def _addressable(data: Any) -> bool:
    if isinstance(data, torch.utils.data.IterableDataset) or not isinstance(data, Source):
        return False
    try:
        len(data)
    except (TypeError, NotImplementedError):  # torch's Dataset promises an index, not a length
        return False
    return True


def _one(columns: tuple[Any, ...]) -> Any:
    return columns[0] if len(columns) == 1 else columns


def _list(numbers: list[int]) -> str:
    return " and ".join(str(number) for number in numbers)
