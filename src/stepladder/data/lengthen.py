"""Rows of unequal length on several ranks: all pad to the longest of the whole batch.

Each rank reads only its own rows and pads them to the longest among them. A module that sees the
padding would then compute otherwise than with the whole batch in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional

from .batch import Batch, map_tensors
from .collate import is_tokens, padding_value


def lengthen(batch: Batch, longest: Callable[[int], int]) -> Batch:
    """The batch with its rows as long as the longest on any rank.

    Args:
        longest: of a column's length here, the largest among the ranks; all call it in one order.
    """
    assert batch.pad is not None
    named = [*tensors_by_key(batch.inputs, ""), *tensors_by_key(batch.targets, "targets")]
    keys = {id(tensor): key for tensor, key in named if is_tokens(tensor)}
    longer: dict[int, Tensor] = {}
    for tensor, _ in named:
        if id(tensor) in keys and id(tensor) not in longer:
            missing = longest(tensor.shape[1]) - tensor.shape[1]
            value = padding_value(keys[id(tensor)], batch.pad)
            padded = functional.pad(tensor, (0, missing), value=value) if missing else tensor
            longer[id(tensor)] = padded

    def exchange(tensor: Tensor) -> Tensor:
        return longer.get(id(tensor), tensor)

    return replace(
        batch,
        inputs=map_tensors(exchange, batch.inputs),
        targets=map_tensors(exchange, batch.targets),
    )


def tensors_by_key(value: Any, key: str) -> Iterator[tuple[Tensor, str]]:
    if isinstance(value, Tensor):
        yield value, key
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from tensors_by_key(part, name)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_by_key(part, key)
