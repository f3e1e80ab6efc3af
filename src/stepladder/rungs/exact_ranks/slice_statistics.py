"""Buffers that a forward pass writes, where a batch is cut into slices whatever the ranks.

Every slice starts from what the batch found, and afterwards the buffer is the mean of what they
left, added up in the tree's order. That includes BatchNorm: a slice is normalised by its own rows.
Of a buffer that has no mean (a flag, a count) every slice of the first batch must leave the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.rungs.data_parallel.buffer_copies import find_differing, fingerprint, whole_buffers
from stepladder.rungs.forward_effects.spectral_norm import spectral_parts
from stepladder.rungs.forward_effects.written_buffers import RunningStatistics, Statistic

from .slices import Slices


@dataclass(slots=True)
class SliceStatistics(RunningStatistics):
    """The buffers of a module that its forward pass writes, slice by slice."""

    slices: Slices = Slices(own=(0,))
    changes: dict[str, list[Tensor]] = field(default_factory=dict)  # by buffer, one a slice
    left: list[dict[str, Tensor]] = field(default_factory=list)  # hashes of buffers without a mean

    @property
    def left_alone(self) -> set[nn.Module]:
        return set(spectral_parts(self.module))

    @property
    def rule(self) -> str:
        return "the mean over the slices of a batch is kept, whatever the ranks"

    def begin(self, micro_batches: int) -> None:
        self.changes, self.left = {}, []
        RunningStatistics.begin(self, micro_batches)

    @torch.no_grad()
    def add(self, one: Statistic, rows: int) -> None:
        change = one.now.to(one.change) - one.before.to(one.change)
        self.changes.setdefault(one.label, []).append(change)

    @contextmanager
    def micro_batch(self, rows: int) -> Iterator[None]:
        with RunningStatistics.micro_batch(self, rows):
            yield
        if self.names is None:
            averaged = {one.label for one in self.held}
            named = [pair for pair in whole_buffers(self.module) if pair[0] not in averaged]
            self.left.append({name: fingerprint([buffer]) for name, buffer in named})

    def add_up(self) -> float:
        for one in self.held:
            one.written = True
            one.change = self.slices.total(torch.stack(self.changes[one.label]))
        ranks = 1 if self.slices.group is None else self.slices.group.size()
        return float(ranks * len(self.slices.own))

    def end(self) -> None:
        first = self.names is None
        RunningStatistics.end(self)
        if first:
            self.refuse_differing()

    def refuse_differing(self) -> None:
        """After the first batch: name a buffer that follows from a rank's own slices.

        On one rank too, by what its slices left: the run could never move to several.
        """
        first, *later = self.left
        moving = [n for n in first if any(not torch.equal(one[n], first[n]) for one in later)]
        named = list(whole_buffers(self.module))
        found = find_differing([buffer for _, buffer in named], self.world)
        differing = [name for (name, _), (numbers, shape) in zip(named, found) if numbers or shape]
        for name in (*moving, *differing)[:1]:
            raise ModelError(
                f"buffer '{name}'",
                "is written in forward and has no mean over slices, so ranks differ in it",
                "Keep it in floating point and in one shape, or leave exact=ranks out.",
            )
