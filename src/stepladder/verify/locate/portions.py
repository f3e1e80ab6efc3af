"""What of a whole tensor a rank holds: its rows, its tokens, its columns.

A rank's tensor does not say how it was cut. Its shape beside the whole one's does, mostly; where
several cuts have that shape, each is tried, and what fits best counts: a tensor that is right in
one of them is no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Portion:
    """A rank's part of one micro-batch."""

    rows: tuple[int, ...]  # of the global batch
    size: int  # rows of the global batch
    tokens: tuple[int, int] = (0, 1)  # index and number of equal chunks of each sequence
    columns: tuple[int, int] = (0, 1)  # index and number of parts of each matrix

    @property
    def cut_axes(self) -> set[str]:
        """Along which every tensor of a forward pass is cut."""
        rows = {"rows"} if self.rows != tuple(range(self.size)) else set()
        return rows | ({"tokens"} if self.tokens[1] > 1 else set())

    def readings(self, whole: Tensor, shape: Sequence[int]) -> Iterator[Reading]:
        """Every part of a whole tensor that this rank may hold as a tensor of this shape.

        What is not cut where the micro-batch is says nothing: it may be a mean over the batch.
        """
        if whole.dim() != len(shape):
            return
        choices = (self.cuts(have, want) for have, want in zip(whole.shape, shape))
        for chosen in product(*choices):
            axes = [axis for cut in chosen for axis in cut.axes]
            if len(axes) == len(set(axes)) and self.cut_axes <= set(axes):
                part = whole
                for dim, cut in enumerate(chosen):
                    part = part if cut.kept is None else part.index_select(dim, cut.kept)
                yield Reading(part, "columns" in axes, any(cut.merged for cut in chosen))

    def cuts(self, have: int, want: int) -> list[Cut]:
        """How one dimension may have been cut."""
        found = [Cut((), None)] if have == want else []
        rows = torch.tensor(self.rows)
        if "rows" in self.cut_axes and have % self.size == 0:
            per_row = have // self.size
            if want == per_row * len(self.rows):
                every = torch.arange(have)
                merged = per_row > 1
                by_row = every.view(self.size, -1)[rows].flatten()
                found.append(Cut(("rows",), by_row, merged))
                if merged:  # rows of every head, one head after the other
                    by_head = every.view(-1, self.size)[:, rows].flatten()
                    found.append(Cut(("rows",), by_head, merged))
        for cut in (*self.even("tokens", have), *self.even("columns", have), *self.both(have)):
            if cut.kept is not None and len(cut.kept) == want:
                found.append(cut)
        return found

    def even(self, axis: str, have: int) -> list[Cut]:
        """A dimension in equal chunks, the last of which may be smaller; or each third of it."""
        index, ways = getattr(self, axis)
        if ways == 1:
            return []
        every, size = torch.arange(have), -(-have // ways)
        found = [Cut((axis,), every[index * size : (index + 1) * size])]
        if axis == "columns" and have % (3 * ways) == 0:  # queries, keys and values in one matrix
            found.append(Cut((axis,), every.view(3, ways, -1)[:, index].flatten()))
        return found

    def both(self, have: int) -> list[Cut]:
        """Tokens of a chunk, dealt out again to the ranks that share its matrices."""
        chunk, part = self.even("tokens", have), self.columns
        if not chunk or part[1] == 1:
            return []
        (first,) = chunk
        assert first.kept is not None
        again = self.even("columns", len(first.kept))[0]
        assert again.kept is not None
        return [Cut(("tokens", "columns"), first.kept[again.kept])]


class Cut(NamedTuple):
    axes: tuple[str, ...]
    kept: Tensor | None  # places along the dimension; None: all
    merged: bool = False  # rows and tokens are one dimension


class Reading(NamedTuple):
    part: Tensor
    by_column: bool  # cut between the ranks that share each matrix
    merged: bool  # rows and tokens are one dimension, whose order a router may have changed
