"""Buffers that a forward pass writes: after a batch they are as if it had come in one piece.

Modules of users keep running statistics: means of activations, codebooks. A batch in micro-batches
writes them several times, and every rank writes them from its own rows. So each micro-batch starts
from what the batch found, and afterwards the buffer is the mean of what they left, over
micro-batches and ranks and weighted by rows: exactly that of the whole batch, where what is written
is a mean over rows. For anything else (a maximum, or a statistic that the same forward pass reads)
it is not, and a run says so.

Not here: BatchNorm, whose statistics ranks combine in forward (batch_norm.py), spectral norm
(spectral_norm.py), and counters of calls (call_counters.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.plan.layout import COPIES
from stepladder.rungs.data_parallel.batch_norm import batch_norms
from stepladder.seam.modules import buffers_of, persistent_buffers
from stepladder.world import World

from .spectral_norm import spectral_parts

Place = tuple[nn.Module, str, Tensor]  # a module, the name of a buffer of its own, that buffer


@dataclass(slots=True)
class Statistic:
    """A buffer, over one batch."""

    part: nn.Module
    name: str
    label: str  # its name in the whole module
    own: Tensor  # the buffer itself, which holds the result afterwards
    before: Tensor  # as the batch found it
    change: Tensor  # the sum of what micro-batches changed, each times its rows
    written: bool = False

    @classmethod
    def of(cls, part: nn.Module, name: str, label: str, buffer: Tensor) -> Statistic:
        before = buffer.detach().clone()
        wide = torch.float64 if before.dtype == torch.float64 else torch.float32
        return cls(part, name, label, buffer, before, torch.zeros_like(before, dtype=wide))

    @property
    def now(self) -> Tensor:
        found = buffers_of(self.part)[self.name]
        assert found is not None
        return found

    def put(self, value: Tensor) -> None:
        buffers_of(self.part)[self.name] = value

    @torch.no_grad()
    def add(self, rows: int) -> None:
        self.change += rows * (self.now.to(self.change) - self.before.to(self.change))

    @torch.no_grad()
    def finish(self, total: float | Tensor) -> None:
        """Leave the mean in the buffer."""
        if self.written:
            self.restore(self.before.to(self.change) + self.change / total)
        else:
            self.put(self.own)

    def restore(self, value: Tensor) -> None:
        if is_expanded(self.own):  # it was replaced, since nothing can be written to it
            self.put(value.to(self.own.dtype))
        else:
            self.own.detach().copy_(value)
            self.put(self.own)

    @property
    def counts_calls(self) -> bool:
        """Whether the buffer counts: call_counters.py has it advance once a batch."""
        rise = self.now.detach().to(self.change) - self.before.to(self.change)
        return self.before.numel() == 1 and rise.item() == 1


@dataclass(slots=True)
class RunningStatistics:
    """The buffers of a module, or of a stage of it, that its forward pass writes."""

    module: nn.Module
    world: World
    notes: list[str] = field(default_factory=list)  # events of the run
    names: frozenset[str] | None = None  # of the buffers that are written; None: not known yet
    held: list[Statistic] = field(default_factory=list)  # of the batch that is running
    rows: int = 0  # that this batch has had so far on this rank
    first: bool = True  # whether no micro-batch of this batch has run

    @contextmanager
    def batch(self, micro_batches: int) -> Iterator[None]:
        """The context of a batch of so many micro-batches."""
        self.begin(micro_batches)
        try:
            yield
        except BaseException:
            self.undo()
            raise
        self.end()

    def begin(self, micro_batches: int) -> None:
        self.rows, self.first = 0, True
        alone = micro_batches == 1 and self.ranks == 1
        self.held = [] if alone or self.names == frozenset() else list(self.candidates())

    @property
    def ranks(self) -> int:
        return 1 if self.world.mesh is None else self.world.group(*COPIES).size()

    @contextmanager
    def micro_batch(self, rows: int) -> Iterator[None]:
        """The context of a micro-batch of so many rows that count."""
        held = self.held
        if not self.first:  # other tensors: autograd may have saved those of the one before
            for one in held:
                one.put(one.before.clone())
        yield
        for one in held:  # what was written in the first batch is taken to be in every later one
            one.written |= self.names is not None or not torch.equal(one.now, one.before)
        if self.first and self.names is None:
            held = [one for one in held if one.now.shape == one.before.shape]  # else it grows
            self.held = [one for one in held if not (one.written and one.counts_calls)]
        self.first = False
        for one in self.held:
            self.add(one, rows)
        self.rows += rows

    def add(self, one: Statistic, rows: int) -> None:
        one.add(rows)

    @property
    def left_alone(self) -> set[nn.Module]:
        """Parts whose buffers others look after."""
        return {*batch_norms(self.module), *spectral_parts(self.module)}

    def end(self) -> None:
        """After a batch: leave in each buffer the mean over its micro-batches and ranks."""
        if self.names is None and (self.held or self.ranks > 1):
            self.agree()
        if self.held:
            total = self.add_up()
            for one in self.held:
                one.finish(total)
        self.held = []

    def undo(self) -> None:
        """After a batch that failed: as it found them."""
        for one in self.held:
            if one.written:
                one.restore(one.before)
            else:
                one.put(one.own)
        self.held = []

    def agree(self) -> None:
        """Find out which buffers any rank writes, alike on all of them."""
        every = [label for label, _ in sorted_buffers(self.module, self.left_alone)]
        mine = {one.label: one.written for one in self.held}
        # Whether it is written, and whether it was left out: it grows, or counts calls.
        flags = [[float(mine.get(one, False)), float(one not in mine)] for one in every]
        found = torch.tensor(flags, device=self.world.device).view(-1, 2)
        if self.ranks > 1 and every:
            found = self.world.max(found, *COPIES)
        written = [one for one, (is_written, left_out) in zip(every, found.tolist())
                   if is_written and not left_out]  # fmt: skip
        for one in self.held:
            if one.label not in written:
                one.put(one.own)
        self.held = [one for one in self.held if one.label in written]
        self.names = frozenset(written)
        if written:
            kept = f"buffer '{written[0]}'{others(written)} is written in forward: {self.rule}"
            self.notes.append(kept)

    @property
    def rule(self) -> str:
        """What is kept of a buffer that micro-batches write, in words."""
        return (
            "the mean over the rows of all micro-batches and ranks is kept, which for anything "
            "but a mean depends on the plan"
        )

    def add_up(self) -> float | Tensor:
        """Add the changes of all ranks; the rows they are weighted by."""
        if self.ranks == 1:
            return float(self.rows)
        for one in self.held:
            one.written = True
            one.change = self.world.sum(one.change, *COPIES)
        return self.world.sum(torch.tensor(float(self.rows), device=self.world.device), *COPIES)

    def candidates(self) -> Iterator[Statistic]:
        for label, (part, name, buffer) in sorted_buffers(self.module, self.left_alone):
            if self.names is None or label in self.names:
                yield Statistic.of(part, name, label, buffer)


def sorted_buffers(module: nn.Module, apart: Collection[nn.Module]) -> list[tuple[str, Place]]:
    """Every buffer that could be a running statistic, by name."""
    found: dict[int, tuple[str, Place]] = {}
    for prefix, part in module.named_modules():
        for name, buffer in persistent_buffers(part):
            if part not in apart and averages(buffer):
                found.setdefault(id(buffer), (f"{prefix}.{name}".lstrip("."), (part, name, buffer)))
    return sorted(found.values(), key=lambda one: one[0])


def averages(buffer: Tensor) -> bool:
    dense = buffer.layout is torch.strided and not isinstance(buffer, DTensor)
    return dense and buffer.is_floating_point() and not buffer.is_meta


def is_expanded(buffer: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape))


def others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
