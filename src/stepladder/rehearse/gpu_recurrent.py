"""LSTM as cuDNN runs it: one kernel over all steps, which keeps a reserve for its backward.

The reserve holds, for each token, direction and layer, four gates and a cell, and what one layer
hands to the next: 11 numbers a hidden unit of a two-layer LSTM, as measured on an H200. Weights
that autocast narrows are gathered into one buffer. Rows come out with the steps first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

KEPT_BY_LAYER = 5  # numbers a hidden unit: four gates and the cell


class Recurrence(NamedTuple):
    """One call of the kernel: so many cells, each over all steps, one after another."""

    inputs: Tensor
    steps: int
    rows: int  # of a step
    width: int  # of what the first layer reads
    hidden: int
    cells: int
    backward: bool


LISTENERS: list[Callable[[Recurrence], None]] = []


@contextmanager
def reporting_to(listener: Callable[[Recurrence], None]) -> Iterator[None]:
    """Tell of every call, which no operation of torch's stands for here."""
    LISTENERS.append(listener)
    try:
        yield
    finally:
        LISTENERS.remove(listener)


def tell(inputs: Tensor, hidden: int, cells: int, *, backward: bool) -> None:
    steps, *rows, width = inputs.shape
    count = rows[0] if rows else 1
    for listener in LISTENERS:
        listener(Recurrence(inputs, steps, count, width, hidden, cells, backward))


def gpu_lstm(input: Tensor, hx: Any, *given: Any) -> Any:
    """What torch.lstm returns for padded rows; None for packed ones, which are left to torch."""
    if isinstance(hx, Tensor):  # sizes of packed batches stand there
        return None
    weights, _, layers, _, _, both_ways, rows_first = given
    casts = torch.is_autocast_enabled("cpu")
    if casts:
        narrow = torch.get_autocast_dtype("cpu")
        input, hx = input.to(narrow), [state.to(narrow) for state in hx]
    ways, hidden = 1 + bool(both_ways), hx[1].shape[-1]
    if rows_first:
        input = input.transpose(0, 1)
    outputs, *states = Lstm.apply(input, *hx, layers * ways, ways, hidden, casts, *weights)
    return outputs.transpose(0, 1) if rows_first else outputs, *states


class Lstm(torch.autograd.Function):
    """Saves and returns what the kernel does; for fake tensors, so the numbers do not matter."""

    @staticmethod
    def forward(
        context: Any, input: Tensor, h: Tensor, c: Tensor, cells: int, ways: int, hidden: int,
        casts: bool, *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        places, width = input.shape[:-1], h.shape[-1]
        tokens = input.numel() // input.shape[-1]
        outputs = input.new_empty((*places, ways * width))
        kept = KEPT_BY_LAYER * cells + cells - ways
        tell(input, hidden, cells, backward=False)
        context.hidden, context.cells = hidden, cells
        reserve = input.new_empty(tokens * hidden * kept)
        together = input.new_empty(sum(weight.numel() for weight in weights) * casts)
        context.save_for_backward(input, h, c, outputs, reserve, together, *weights)
        return outputs, h.clone(), c.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, h, c, _, _, together, *weights = context.saved_tensors
        tell(input, context.hidden, context.cells, backward=True)
        torch.empty_like(together)
        made = [torch.empty_like(weight) for weight in weights]
        numbers = (None, None, None, None)
        return (torch.empty_like(input), torch.empty_like(h), torch.empty_like(c), *numbers, *made)
