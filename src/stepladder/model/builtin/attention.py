"""Attention, and the one replaceable call inside it.

`Attention.attend` is a plain function of (query, key, value, mask, causal), each tensor (batch,
heads, length, head width). A rung replaces it to choose a kernel or to attend across ranks. If
there are more keys than queries, `causal` means that the queries are the last positions. The number
of heads follows from the projection's width, so a rank with some of the heads runs the same code.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from stepladder.errors import ModelError, PlanError, nearest

from .rotary import Rotary

if torch.cuda.is_available():  # it imports the compiler, which takes two seconds, for a CUDA kernel
    from torch.nn.attention.bias import causal_lower_right


Attend = Callable[..., Tensor]

ATTENTION_CUTS = {
    "attention.query": "column",
    "attention.key": "column",
    "attention.value": "column",
    "attention.out": "row",
}


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = True
) -> Tensor:
    """Attend with the fused kernel that torch chooses."""
    if causal and mask is None and query.shape[-2] < key.shape[-2]:
        mask = last_query_mask(query, key)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal and mask is None,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = True
) -> Tensor:
    """Attend with the flash kernel, or raise."""
    if mask is not None:
        raise ModelError(
            "attention",
            "the flash kernel takes no mask, and packed documents need one",
            "Use attention=auto.",
        )
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return fused_attention(query, key, value, causal=causal)
    except RuntimeError as problem:
        if "No available kernel" not in str(problem):
            raise
        dtype = str(query.dtype).removeprefix("torch.")
        raise ModelError(
            "attention",
            f"no flash kernel on {query.device.type} takes {dtype} heads of {query.shape[-1]}",
            "Use attention=auto, or precision=bf16 and heads of at most 256.",
        ) from problem


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = True
) -> Tensor:
    """Attend by the formula softmax(QKᵀ/√d)V, with all scores in memory."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5  # (…, length, length)
    if mask is None and causal:
        mask = causal_mask(query.shape[-2], key.shape[-2], query.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.float().softmax(-1)  # fp32: a sum over many small numbers
    return weights.to(value.dtype) @ value


def last_query_mask(query: Tensor, key: Tensor) -> Tensor:
    """The causal mask for the last queries of a sequence, in the form torch has a kernel for."""
    if query.device.type == "cpu":  # its kernels do not take torch's causal bias objects
        return causal_mask(query.shape[-2], key.shape[-2], query.device)
    return causal_lower_right(query.shape[-2], key.shape[-2])


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def document_mask(documents: Tensor, seen: Tensor | None = None) -> Tensor:
    """True for tokens that may be attended to: earlier, same document. (batch, 1, length, seen)

    If the queries are only the last of the tokens `seen`, `documents` are the queries'.
    """
    seen = documents if seen is None else seen
    same = documents[:, None, :, None] == seen[:, None, None, :]
    return same & causal_mask(documents.shape[-1], seen.shape[-1], seen.device)


class Attention(nn.Module):
    """Four projections around `attend`; the keys may have fewer heads than the queries."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        *,
        bias: bool,
        rotary: Rotary | None = None,
        causal: bool = True,
        head_width: int = 0,
        norms: str = "",
    ) -> None:
        super().__init__()
        self.head_width = head_width or hidden // heads
        self.causal = causal
        queries, keys = heads * self.head_width, kv_heads * self.head_width
        self.query = nn.Linear(hidden, queries, bias=bias)
        self.key = nn.Linear(hidden, keys, bias=bias)
        self.value = nn.Linear(hidden, keys, bias=bias)
        self.out = nn.Linear(queries, hidden, bias=bias)
        self.norms = norms  # of queries and keys: over each head, over all heads, or none
        if norms:
            widths = (self.head_width,) * 2 if norms == "head" else (queries, keys)
            self.query_norm, self.key_norm = (nn.RMSNorm(width, eps=1e-5) for width in widths)
        self.rotary = rotary  # shared by all blocks
        self.attend: Attend = fused_attention

    def forward(
        self, hidden: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        if self.norms == "all":
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (
            one.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for one in (query, key, value)
        )
        if self.norms == "head":
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary is not None:
            query, key = self.rotary(query, positions), self.rotary(key, positions)
        seen = self.attend(query, key, value, mask=mask, causal=self.causal)
        return self.out(seen.transpose(1, 2).flatten(2))


ATTENTION_KINDS: dict[str, Attend] = {
    "auto": fused_attention,
    "flash": flash_attention,
    "plain": plain_attention,
}


def set_attention(module: nn.Module, kind: str) -> None:
    """Make every attention of the module use this kind of kernel."""
    if kind not in ATTENTION_KINDS:
        raise PlanError(
            "attention", f"'{kind}' is not a way to attend", nearest(kind, ATTENTION_KINDS)
        )
    found = [part for part in module.modules() if isinstance(part, Attention)]
    if kind != "auto" and not found:
        raise ModelError(
            type(module).__name__, "has no attention that can be replaced", "Use attention=auto."
        )
    if kind == "flash":
        check_flash(found[0])
    for attention in found:
        attention.attend = ATTENTION_KINDS[kind]


def check_flash(attention: Attention) -> None:
    """Raise now if the device has no flash kernel for these heads in any type."""
    device = attention.query.weight.device
    heads = torch.zeros(1, 1, 8, attention.head_width, device=device, dtype=torch.bfloat16)
    flash_attention(heads, heads, heads)
