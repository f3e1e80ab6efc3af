"""Counting the FLOPs of every matmul of a forward pass as it is dispatched.

Backward is not run. The backward of a matmul is one matmul of the same size for each operand that
requires a gradient, so frozen weights and the model's inputs cost nothing, and no loss is needed.

Causal attention counts half: the other half of its scores is never needed. Fused attention says so
by `is_causal`; unfused attention is recognised by its shape, a batched matmul whose square result
is masked and goes through a softmax into another. A mask that differs between queries counts as
causal; a padding mask is the same for all queries, and a learned bias requires a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from stepladder.seam.dispatch import DispatchMode
from stepladder.seam.operators import Operators
from stepladder.seam.pytree import tree_leaves

from .operator_flops import COUNTED, SOFTMAX, elementwise_flops, is_uncounted, name_of

aten = torch.ops.aten
MATMULS = Operators(
    {
        "aten.mm": (0, 1),
        "aten.addmm": (1, 2),
        "aten.bmm": (0, 1),
        "aten.baddbmm": (1, 2),
        "aten.addbmm": (1, 2),
        "aten._grouped_mm": (0, 1),  # each row with its own expert's matrix
        "stepladder.grouped_loop": (0, 1),
    }
)
CONVOLUTIONS = Operators(("aten.convolution", "aten._convolution", "aten.cudnn_convolution"))
MASKING = (aten.masked_fill, aten.masked_fill_, aten.where, aten.add, aten.add_)
LIKE_FACTORIES = (aten.ones_like, aten.zeros_like, aten.full_like, aten.empty_like)
CASTS = Operators(
    ("aten._to_copy", "aten._autocast_to_reduced_precision", "aten._autocast_to_full_precision")
)
SOFTMAXES = Operators(("aten._softmax", "aten._safe_softmax"))


class FlopCounter:
    """Running totals of FLOPs, for forward by part of the model."""

    def __init__(self, inside: list[str]) -> None:
        self.inside = inside  # its last entry is the part now running
        self.parts: dict[str, int] = {}
        self.backward = 0
        self.attention = 0
        self.elementwise = 0
        self.uncounted: set[str] = set()

    @property
    def part(self) -> str:
        return self.inside[-1]

    def add(self, part: str, forward: int, backward: int) -> None:
        self.parts[part] = self.parts.get(part, 0) + forward
        self.backward += backward


@dataclass(slots=True)
class AttentionScores:
    """A square batched matmul that may turn out to be attention scores."""

    part: str
    forward: int
    backward: int
    square: tuple[int, ...]
    causal: bool = False
    soft: bool = False  # went through a softmax, so these are attention weights

    @property
    def halves(self) -> int:
        return 2 if self.causal else 1


class MatmulCounter(DispatchMode):
    """Counts matmuls and convolutions, and recognises unfused attention."""

    def __init__(self, counter: FlopCounter) -> None:
        super().__init__()
        self.counter = counter
        self.scores: dict[
            int, tuple[Tensor, AttentionScores]
        ] = {}  # tensors are kept so that ids stay unique

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in MATMULS:
            first, second = (args[index] for index in MATMULS[packet])
            self.count_matmul(first, second, out)
        elif packet in CONVOLUTIONS:
            self.count_convolution(args[0], args[1], out, transposed=args[6])
        else:
            self.count_other(func, args, out)
            if self.scores:
                self.track_scores(packet, tree_leaves((args, kwargs)), out)
        return out

    def count_other(self, func: Any, args: Any, out: Any) -> None:
        formula = COUNTED.get(name_of(func))
        if formula is not None:
            self.counter.add(self.counter.part, *formula(args, out))
        elif is_uncounted(func):
            self.counter.uncounted.add(func.name())
        self.counter.elementwise += elementwise_flops(func, args, out)

    def count_matmul(self, first: Tensor, second: Tensor, out: Tensor) -> None:
        forward = 2 * first.numel() * second.shape[-1]
        backward = forward * (first.requires_grad + second.requires_grad)
        _, weights = self.scores.get(id(first), (None, None))
        if weights is not None and weights.soft:
            forward, backward = forward // weights.halves, backward // weights.halves
            self.counter.attention += forward
        elif out.dim() == 3 and out.shape[-1] == out.shape[-2] > 1:
            scores = AttentionScores(self.counter.part, forward, backward, tuple(out.shape[-2:]))
            self.scores[id(out)] = (out, scores)
        self.counter.add(self.counter.part, forward, backward)

    def count_convolution(
        self, images: Tensor, weight: Tensor, out: Tensor, *, transposed: bool
    ) -> None:
        places = prod((images if transposed else out).shape[2:])
        forward = 2 * images.shape[0] * places * weight.numel()
        backward = forward * (images.requires_grad + weight.requires_grad)
        self.counter.add(self.counter.part, forward, backward)

    def track_scores(self, packet: Any, inputs: list[Any], out: Any) -> None:
        """Follow attention scores through the operations applied to them."""
        tensors = [leaf for leaf in inputs if isinstance(leaf, Tensor)]
        marked = next((self.scores[id(t)] for t in tensors if id(t) in self.scores), None)
        if marked is None or packet in LIKE_FACTORIES:
            return
        tensor, scores = marked
        if packet in MASKING:
            others = [t for t in tensors if id(t) not in self.scores]
            scores.causal |= any(looks_causal(mask, scores.square) for mask in others)
        if packet in SOFTMAXES and not scores.soft:
            self.confirm_attention(scores)
        for result in tree_leaves(out):
            same = isinstance(result, Tensor) and result.numel() == tensor.numel()
            if same and result.is_floating_point():
                self.scores[id(result)] = (result, scores)

    def confirm_attention(self, scores: AttentionScores) -> None:
        """Count the scores as attention, and if causal subtract the half that is masked."""
        scores.soft = True
        kept = scores.forward // scores.halves
        self.counter.attention += kept
        spared = scores.backward - scores.backward // scores.halves
        self.counter.add(scores.part, kept - scores.forward, -spared)


def looks_causal(mask: Tensor, square: tuple[int, ...]) -> bool:
    """Whether a mask differs between queries and is no learned bias."""
    whole = mask.dim() > 1 and tuple(mask.shape[-2:]) == square
    return whole and mask.stride(-2) != 0 and not mask.requires_grad


class FusedAttentionCounter(TorchFunctionMode):
    """Counts fused attention without running a kernel, since only its result's shape matters."""

    def __init__(self, counter: FlopCounter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return self.count_attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def count_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        square = (query.shape[-2], key.shape[-2])
        causal = is_causal or (attn_mask is not None and looks_causal(attn_mask, square))
        halves = 2 if causal and square[0] == square[1] else 1
        pairs = query.shape[:-1].numel() * key.shape[-2]
        score, mix = (2 * pairs * width // halves for width in (query.shape[-1], value.shape[-1]))
        wanted = query.requires_grad, key.requires_grad, value.requires_grad
        backward = score * sum(wanted[:2]) + mix * (any(wanted[:2]) + wanted[2])
        self.counter.add(self.counter.part, score + mix, backward)
        self.counter.attention += score + mix
        elementwise = self.counter.elementwise + (1 + SOFTMAX) * pairs // halves  # 1: the scaling
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        # Requires a gradient if one of them does.
        out = out + (query.sum() + key.sum() + value.sum())
        self.counter.elementwise = elementwise  # without what the stand-in computed
        return out
