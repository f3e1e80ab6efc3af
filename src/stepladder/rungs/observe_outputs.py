"""Seeing what a module returns for each micro-batch of an evaluation, with its loss or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from stepladder.data import Batch
from stepladder.loss import NO_LOSS, Loss

Observe = Callable[[Any, Batch], None]  # is given outputs, and the micro-batch they are of


class Observable(Protocol):
    """How a batch is evaluated, as far as whoever looks at outputs changes it."""

    loss: Loss
    observe: Observe | None

    @property
    def whole_outputs(self) -> Callable[[], AbstractContextManager[Any]]: ...


@contextmanager
def observed(run: Observable, observe: Observe | None) -> Iterator[None]:
    """A context in which `observe` is given the outputs of every micro-batch."""
    with run.whole_outputs() if observe else nullcontext():
        run.observe = observe
        try:
            yield
        finally:
            run.observe = None


@contextmanager
def without_loss(run: Observable) -> Iterator[None]:
    """A context in which batches need no targets, because only their outputs are wanted."""
    loss, run.loss = run.loss, NO_LOSS
    try:
        yield
    finally:
        run.loss = loss
