"""The rows of one batch as a source of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stepladder.data import Batch
from stepladder.data.batch import map_tensors
from stepladder.train.step_batch import count_rows, structure


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one batch, as samples."""

    tensors: Any  # a tensor, or a tuple or dict of tensors

    def __len__(self) -> int:
        return count_rows(self.tensors)

    def __getitem__(self, index: int) -> Any:
        return map_tensors(lambda tensor: tensor[index] if tensor.dim() else tensor, self.tensors)

    def fetch(self, indices: np.ndarray) -> Any:
        rows = torch.from_numpy(np.ascontiguousarray(indices))
        return map_tensors(lambda tensor: tensor[rows] if tensor.dim() else tensor, self.tensors)


def rows_of(batch: Any) -> Rows:
    """A batch as `run.step` takes it, row by row."""
    given = structure(batch)
    if isinstance(given, Batch):
        whole = isinstance(given.inputs, dict) or given.targets is None
        given = given.inputs if whole else (given.inputs, given.targets)
    rows = Rows(map_tensors(lambda tensor: tensor.detach().cpu(), given))
    len(rows)  # refused here where its tensors do not agree
    return rows
