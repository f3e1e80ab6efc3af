"""Attention of one chunk of a sequence to all of it: keys and values are gathered, queries stay.

[Note: keys are gathered twice] Gathered keys and values are as long as the whole sequence, which is
what splitting it was to avoid. So they exist inside the attention only: backward saves this rank's
own and gathers the others' again. torch's selective checkpoint does that and saves the attention's
result, so that no attention is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from stepladder.errors import ModelError
from stepladder.model.builtin.attention import last_query_mask
from stepladder.rungs.memory.recompute import selective_contexts
from stepladder.seam.operators import all_gather, reduce_scatter


@dataclass(slots=True, eq=False)
class SequenceChunk:
    """Which of `ways` equal chunks of every sequence this rank has."""

    index: int
    ways: int
    group: str  # the name of the group of ranks with the other chunks
    cut: bool = False  # False: sequences are whole, as in sampling

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """A context in which the module is given chunks of sequences."""
        self.cut = True
        try:
            yield
        finally:
            self.cut = False

    def of(self, length: int) -> slice:
        size = length // self.ways
        return slice(self.index * size, (self.index + 1) * size)

    def gather(self, tensor: Tensor, dim: int, *, ahead: bool) -> Tensor:
        """All chunks of a tensor in order; without `ahead`, none after this rank's."""
        parts = Gather.apply(tensor, self.ways, self.group).chunk(self.ways)
        return torch.cat(parts if ahead else parts[: self.index + 1], dim)


class Gather(torch.autograd.Function):
    """Every rank's tensor, one after the other along the first dimension."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, ways: int, group: str) -> Tensor:
        context.ways, context.group = ways, group
        return all_gather(tensor.contiguous(), ways, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return reduce_scatter(gradient.contiguous(), context.ways, context.group), None, None


def attend_to_all(
    attend: Callable[..., Tensor],
    chunk: SequenceChunk,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """Attend as `attend` does, to the keys and values of every chunk that may be seen."""
    if not chunk.cut:
        return attend(query, key, value, mask=mask, causal=causal)
    inner = partial(attend, mask=mask, causal=causal)
    return with_regather(partial(attend_gathered, inner, chunk, not causal), query, key, value)


def with_regather(attend: Callable[..., Tensor], *heads: Tensor, draws: bool = False) -> Tensor:
    """Attend, and gather again for backward: see [Note: keys are gathered twice]."""
    if not torch.is_grad_enabled():
        return attend(*heads)
    return checkpoint(
        attend, *heads, use_reentrant=False, preserve_rng_state=draws, context_fn=selective_contexts
    )


def attend_gathered(
    attend: Callable[..., Tensor],
    chunk: SequenceChunk,
    ahead: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> Tensor:
    both = torch.cat((key, value), -1)  # one message
    keys, values = chunk.gather(both, -2, ahead=ahead).split((key.shape[-1], value.shape[-1]), -1)
    return attend(query, keys, values)


class GatherInAttention(TorchFunctionMode):
    """A context in which torch's fused attention gathers keys and values, whoever calls it."""

    def __init__(self, chunk: SequenceChunk) -> None:
        super().__init__()
        self.chunk = chunk

    def __torch_function__(self, func, types, args=(), kwargs=None):
        call = self.attend if func is F.scaled_dot_product_attention else func
        return call(*args, **(kwargs or {}))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        if attn_mask is not None:
            raise ModelError(
                "layout.context",
                "the module made an attention mask from its chunk of the sequence alone",
                "Leave attention_mask out where rows are full, or use context=1.",
            )
        if query.shape[-2] != key.shape[-2]:
            raise ModelError(
                "layout.context",
                f"{query.shape[-2]} queries look at {key.shape[-2]} keys, not at their own",
                "Use context=1.",
            )
        inner = partial(fused, is_causal, dropout_p=dropout_p, **options)
        across = partial(attend_gathered, inner, self.chunk, not is_causal)
        return with_regather(across, query, key, value, draws=dropout_p > 0)


def fused(causal: bool, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = None
    if causal and query.shape[-2] < key.shape[-2]:
        mask = last_query_mask(query, key)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal and mask is None, **options
    )
