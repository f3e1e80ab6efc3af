"""Counters of calls under gradient accumulation: they advance once a batch.

BatchNorm counts the batches it has seen, spectral norm iterates its vectors, and modules of users
anneal a temperature by the number of their calls. A batch in micro-batches calls the module several
times, where one call would have done on the whole batch. So every micro-batch of a batch sees the
counters as the first one saw them, and afterwards they stand where the first one left them.

A counter is a single number, in a buffer or an attribute, that the first micro-batch raises by
exactly one; in micro-batches of one row a count of rows does so too, and is taken for one. The
count of a BatchNorm without momentum stays that of its calls: it is the divisor of a mean over
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from stepladder.rungs.data_parallel.gradient_sync import Around
from stepladder.seam.modules import buffers_of, module_attributes

from .spectral_norm import iterated_buffers, spectral_parts

Place = tuple[nn.Module, str]  # a module and the name of a buffer or attribute of its own
Number = Tensor | int | float
Stage = TypeVar("Stage", bound=nn.Module)


@dataclass(slots=True)
class CallCounters:
    """The counters in a module, or in a stage of it."""

    module: nn.Module
    first: bool = True  # whether the next call is the first of its batch
    found: list[Place] | None = None  # None before the first batch
    before: list[Number] = field(default_factory=list)  # as the first micro-batch saw them

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """The context of a micro-batch's forward pass, first or later in its batch."""
        if not self.first:
            with self.as_first_seen():
                yield
            return
        vectors = vectors_in(self.module) if self.found is None else []
        places = [*numbers_in(self.module), *vectors] if self.found is None else self.found
        self.before = [copied(read(place)) for place in places]
        yield
        self.first = False
        if self.found is None:
            numbers = len(places) - len(vectors)
            rises = rises_of(self.before[:numbers], [read(p) for p in places[:numbers]])
            kept = [index for index, rise in enumerate(rises) if rise == 1]
            kept += range(numbers, len(places))
            self.found, self.before = [places[i] for i in kept], [self.before[i] for i in kept]

    def called_by(self, run: Callable[[Stage], Tensor], stage: Stage) -> Tensor:
        """Run a stage of a pipeline on a micro-batch of a step, or in evaluation."""
        if not torch.is_grad_enabled():
            return run(stage)
        with self.micro_batch():
            return run(stage)

    @contextmanager
    def as_first_seen(self) -> Iterator[None]:
        places = self.found or []
        after = [read(place) for place in places]
        for place, value in zip(places, self.before):
            write(place, copied(value))  # another tensor: autograd may have saved this one
        try:
            yield
        finally:
            for place, value in zip(places, after):
                write(place, value)


def count_once(module: nn.Module, around: Around) -> Around:
    """The context of a micro-batch, in which only the first of a batch advances counters."""
    counters = CallCounters(module)

    @contextmanager
    def around_micro_batch(last: bool) -> Iterator[None]:
        whole = counters.first and last
        try:
            with nullcontext() if whole else counters.micro_batch(), around(last):
                yield
        except BaseException:
            counters.first = True  # the batch is tried again
            raise
        counters.first = last

    return around_micro_batch


def vectors_in(module: nn.Module) -> list[Place]:
    """What spectral norms iterate in every call."""
    return [(part, name) for part in spectral_parts(module) for name in iterated_buffers(part)]


def numbers_in(module: nn.Module) -> list[Place]:
    """Every single number that a forward pass could count with."""
    found: list[Place] = []
    for part in module.modules():
        averages = getattr(part, "momentum", 0.0) is None
        buffers = [] if averages else [n for n, b in buffers_of(part).items() if counts(b)]
        values = module_attributes(part).items()
        attributes = [name for name, value in values if type(value) in (int, float)]
        found += [(part, name) for name in (*buffers, *attributes)]
    return found


def counts(buffer: Tensor | None) -> bool:
    if buffer is None or buffer.is_meta or buffer.layout is not torch.strided:
        return False
    return buffer.numel() == 1 and not buffer.is_complex() and buffer.dtype != torch.bool


def rises_of(before: Sequence[Number], after: Sequence[Number]) -> list[float]:
    """By how much each number rose; the device is read once."""
    rises = [
        b.double() - a.to(b).double() if isinstance(a, Tensor) and isinstance(b, Tensor) else b - a
        for a, b in zip(before, after)
    ]
    tensors = [rise.reshape(()) for rise in rises if isinstance(rise, Tensor)]
    read = iter(torch.stack([t.to(tensors[0].device) for t in tensors]).tolist() if tensors else ())
    return [next(read) if isinstance(rise, Tensor) else rise for rise in rises]


def read(place: Place) -> Number:
    part, name = place
    found: Number = getattr(part, name)
    return found


def write(place: Place, value: Number) -> None:
    part, name = place
    if isinstance(value, Tensor):
        buffers_of(part)[name] = value
    else:
        vars(part)[name] = value


def copied(value: Number) -> Number:
    return value.detach().clone() if isinstance(value, Tensor) else value
