"""Rung: the output layer and its cross-entropy as one, so that the logits never exist whole.

The module runs as it is, save that its head hands on what it was given; the loss then takes these
features and the head's weight together (kernels/linear_cross_entropy.py). The head does so only
inside a training pass: called by anybody else the module answers with logits as before.

Whether a foreign module's answer is its head's answer, with nothing done to it afterwards, cannot
be read off its structure: Gemma squashes its logits, others scale them. So before the first pass
one row goes through both ways, and where they differ the module keeps its own loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from stepladder.data import IGNORED
from stepladder.loss import Loss
from stepladder.model import Anatomy
from stepladder.plan.shared_constants import FUSED_VOCABULARY

from .convert_float8 import gains
from .linear_cross_entropy import linear_cross_entropy

LABELS = "labels"
SAME = 2e-2  # of a row's largest logit: rounding in 16 bits differs by less, a squashed answer more


@dataclass(slots=True)
class FusedHead:
    """What a module's own loss was, and whether the head has taken its place."""

    module: nn.Module
    head: Any  # the linear that answers
    plain: Loss
    proven: bool  # that the module's answer is the head's answer
    eight: bool = False  # its products are of 8-bit numbers
    notes: list[str] = field(default_factory=list)  # where it is said that it did not
    because: str = ""  # why the module kept its own loss; nothing while it has not
    _open: bool = field(default=False, init=False)

    @property
    def loss(self) -> Loss:
        return replace(self.plain, function=self._loss)

    def _loss(self, outputs: Any, targets: Tensor) -> Tensor:
        if self.because:
            return self.plain.function(outputs, targets)
        labels = functional.pad(targets[..., 1:], (0, 1), value=IGNORED)
        wanted = labels if self.plain.shifted else targets
        hidden = logits_of(outputs)
        return linear_cross_entropy(
            hidden, self.head.weight, wanted.contiguous(), ignore_index=IGNORED, reduction="mean",
            float8=self.eight,
        )  # fmt: skip

    def intake(self, inputs: Any) -> Any:
        """Inputs as the fused pass wants them: labels would have the module take its own loss."""
        if not self.proven:
            self._prove(inputs)
        return inputs if self.because else self._without_labels(inputs)

    def _without_labels(self, inputs: Any) -> Any:
        if self.plain.kind != "own" or not isinstance(inputs, dict):
            return inputs
        kept = {name: value for name, value in inputs.items() if name != LABELS}
        # A cache of keys serves generation; filling it costs a training pass time.
        return {**kept, "use_cache": False}

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A block in which the head hands on its input."""
        self._open = True
        self.head.hands_on = not self.because
        try:
            yield
        finally:
            self.head.hands_on = self._open = False

    @torch.no_grad()
    def _prove(self, inputs: Any) -> None:
        """Compare the two ways on one row, uncompiled and without dropout."""
        row = self._without_labels(tree_map(first_row, inputs))
        training = self.module.training
        self.module.eval()
        try:
            with torch.compiler.set_stance("force_eager"):
                self.head.hands_on = False
                whole = logits_of(run(self.module, row))
                self.head.hands_on = True
                hidden = logits_of(run(self.module, row))
            self.head.hands_on = False
            agree = same(whole, self.head(hidden)) if isinstance(hidden, Tensor) else False
        finally:
            self.module.train(training)
        if not agree:
            self.because = f"{type(self.module).__name__} does more to its answer than its head"
            self.notes.append(f"kernels: {self.because}, and keeps its own loss")
        self.head.hands_on = self._open and agree
        self.proven = True


def fuse_head(
    module: nn.Module,
    anatomy: Anatomy,
    loss: Loss,
    *,
    least: int = FUSED_VOCABULARY,
    eight: bool = False,
) -> FusedHead | None:
    """The head and the loss as one; None where the loss or the head is not of the kind."""
    head: Any = module.get_submodule(anatomy.head) if anatomy.head else None
    ours = loss.kind == "cross_entropy" or (loss.kind == "own" and loss.shifted)
    plain = type(head) is nn.Linear and head.bias is None and "forward" not in vars(head)
    if not ours or not plain or head.out_features < least:
        return None
    head.hands_on = False
    head.forward = MethodType(forward_or_hand_on, head)
    declared = isinstance(getattr(module, "anatomy", None), Anatomy)
    eight = eight and gains(head.in_features, head.out_features)
    return FusedHead(module, head, loss, proven=declared, eight=eight)


def forward_or_hand_on(head: Any, hidden: Tensor) -> Tensor:
    return hidden if head.hands_on else functional.linear(hidden, head.weight)


def run(module: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def first_row(leaf: Any) -> Any:
    return leaf[:1] if isinstance(leaf, Tensor) and leaf.dim() else leaf


def logits_of(outputs: Any) -> Any:
    return getattr(outputs, "logits", outputs)


def same(one: Any, other: Tensor) -> bool:
    if not isinstance(one, Tensor) or one.shape != other.shape:
        return False
    return bool((one.float() - other.float()).abs().amax() <= SAME * one.float().abs().amax())
