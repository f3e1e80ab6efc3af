"""The tally: every matrix product of a forward pass, counted as it is dispatched.

Backward is not run. The gradient of a product is one product as large for each operand that wants a
gradient, so frozen weights and the model's inputs cost nothing, and no loss is needed.

Causal attention counts half: the other half of its scores is never wanted. A fused attention says
so by `is_causal`; attention written out is known by its shape, a batched product whose square
result is masked and goes through a softmax into another. A mask that differs from query to query is
taken for a causal one; a mask of padding is the same for all of them, and a learned bias wants a
gradient.
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

aten = torch.ops.aten
PRODUCTS = Operators(
    {
        "aten.mm": (0, 1),
        "aten.addmm": (1, 2),
        "aten.bmm": (0, 1),
        "aten.baddbmm": (1, 2),
        "aten._grouped_mm": (0, 1),  # each row with its own expert's matrix
    }
)
CONVOLUTIONS = Operators(("aten.convolution", "aten._convolution", "aten.cudnn_convolution"))
MASKING = (aten.masked_fill, aten.masked_fill_, aten.where, aten.add, aten.add_)
LIKENESSES = (aten.ones_like, aten.zeros_like, aten.full_like, aten.empty_like)
CASTS = Operators(
    ("aten._to_copy", "aten._autocast_to_reduced_precision", "aten._autocast_to_full_precision")
)
SOFTMAX = Operators(("aten._softmax", "aten._safe_softmax"))


class Tally:
    """Running totals, forward by part of the model."""

    def __init__(self, inside: list[str]) -> None:
        self.inside = inside  # its last entry is the part now running
        self.parts: dict[str, int] = {}
        self.backward = 0
        self.attention = 0

    @property
    def part(self) -> str:
        return self.inside[-1]

    def add(self, part: str, forward: int, backward: int) -> None:
        self.parts[part] = self.parts.get(part, 0) + forward
        self.backward += backward


@dataclass(slots=True)
class Scores:
    """A square batched product that may turn out to be attention's."""

    part: str
    forward: int
    backward: int
    square: tuple[int, ...]
    causal: bool = False
    soft: bool = False  # went through a softmax: these are attention's weights now

    @property
    def halves(self) -> int:
        return 2 if self.causal else 1


class Products(DispatchMode):
    """Tallies products and convolutions, and recognises attention written out."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally
        self.scores: dict[int, tuple[Tensor, Scores]] = {}  # keeping a tensor keeps its id

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in PRODUCTS:
            first, second = (args[index] for index in PRODUCTS[packet])
            self.product(first, second, out)
        elif packet in CONVOLUTIONS:
            self.convolution(args[0], args[1], out, transposed=args[6])
        elif self.scores:
            self.follow(packet, tree_leaves((args, kwargs)), out)
        return out

    def product(self, first: Tensor, second: Tensor, out: Tensor) -> None:
        forward = 2 * first.numel() * second.shape[-1]
        backward = forward * (first.requires_grad + second.requires_grad)
        _, weights = self.scores.get(id(first), (None, None))
        if weights is not None and weights.soft:
            forward, backward = forward // weights.halves, backward // weights.halves
            self.tally.attention += forward
        elif out.dim() == 3 and out.shape[-1] == out.shape[-2] > 1:
            scores = Scores(self.tally.part, forward, backward, tuple(out.shape[-2:]))
            self.scores[id(out)] = (out, scores)
        self.tally.add(self.tally.part, forward, backward)

    def convolution(self, images: Tensor, weight: Tensor, out: Tensor, *, transposed: bool) -> None:
        places = prod((images if transposed else out).shape[2:])
        forward = 2 * images.shape[0] * places * weight.numel()
        backward = forward * (images.requires_grad + weight.requires_grad)
        self.tally.add(self.tally.part, forward, backward)

    def follow(self, packet: Any, inputs: list[Any], out: Any) -> None:
        """Carry the mark of a score through what is done to it."""
        tensors = [leaf for leaf in inputs if isinstance(leaf, Tensor)]
        marked = next((self.scores[id(t)] for t in tensors if id(t) in self.scores), None)
        if marked is None or packet in LIKENESSES:
            return
        tensor, scores = marked
        if packet in MASKING:
            others = [t for t in tensors if id(t) not in self.scores]
            scores.causal |= any(looks_causal(mask, scores.square) for mask in others)
        if packet in SOFTMAX and not scores.soft:
            self.confirm(scores)
        for result in tree_leaves(out):
            same = isinstance(result, Tensor) and result.numel() == tensor.numel()
            if same and result.is_floating_point():
                self.scores[id(result)] = (result, scores)

    def confirm(self, scores: Scores) -> None:
        """It was attention: name it so, and take back the half that no one looks at."""
        scores.soft = True
        kept = scores.forward // scores.halves
        self.tally.attention += kept
        spared = scores.backward - scores.backward // scores.halves
        self.tally.add(scores.part, kept - scores.forward, -spared)


def looks_causal(mask: Tensor, square: tuple[int, ...]) -> bool:
    """Whether a mask differs from query to query and is no learned bias."""
    whole = mask.dim() > 1 and tuple(mask.shape[-2:]) == square
    return whole and mask.stride(-2) != 0 and not mask.requires_grad


class FusedAttention(TorchFunctionMode):
    """Tallies fused attention, which no kernel then need run: only its result's shape matters."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return self.attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

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
        square = (query.shape[-2], key.shape[-2])
        causal = is_causal or (attn_mask is not None and looks_causal(attn_mask, square))
        halves = 2 if causal and square[0] == square[1] else 1
        pairs = query.shape[:-1].numel() * key.shape[-2]
        score, mix = (2 * pairs * width // halves for width in (query.shape[-1], value.shape[-1]))
        wanted = query.requires_grad, key.requires_grad, value.requires_grad
        backward = score * sum(wanted[:2]) + mix * (any(wanted[:2]) + wanted[2])
        self.tally.add(self.tally.part, score + mix, backward)
        self.tally.attention += score + mix
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        return out + (query.sum() + key.sum() + value.sum())  # wants a gradient if one of them does
