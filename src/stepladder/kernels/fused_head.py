"""Rung: the output layer fused with its cross-entropy, so that the logits never exist whole.

During a training pass the output layer (head) returns its input unchanged, and the loss takes that
input together with the head's weight (kernels/linear_cross_entropy.py). Outside of one the module
returns logits as before.

Whether a foreign module's output is its head's output, unchanged, cannot be read off its structure:
Gemma soft-caps its logits, others scale them. So before the first pass one row is computed both
ways, and where the results differ the module keeps its own loss.
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

from stepladder.data import IGNORED
from stepladder.loss import Loss
from stepladder.model import Anatomy
from stepladder.plan import SettledPlan
from stepladder.plan.shared_constants import FUSED_VOCABULARY
from stepladder.seam.pytree import tree_map

from .convert_float8 import gains
from .linear_cross_entropy import linear_cross_entropy

LABELS = "labels"
SAME = 2e-2  # of a row's largest logit: rounding in 16 bits differs by less, a soft cap by more


@dataclass(slots=True)
class FusedHead:
    """A module's head and loss, fused unless the module turns out to change its head's output."""

    module: nn.Module
    head: Any  # the output layer
    unfused: Loss
    checked: bool  # whether the module's output is known to be its head's
    float8: bool = False  # its matmuls are in fp8
    notes: list[str] = field(default_factory=list)  # where a refusal is reported
    refusal: str = ""  # why the module keeps its own loss; empty while it is fused
    _inside: bool = field(default=False, init=False)

    @property
    def loss(self) -> Loss:
        return replace(self.unfused, function=self._loss)

    def _loss(self, outputs: Any, targets: Tensor) -> Tensor:
        if self.refusal:
            return self.unfused.function(outputs, targets)
        labels = functional.pad(targets[..., 1:], (0, 1), value=IGNORED)
        wanted = labels if self.unfused.shifted else targets
        hidden = logits_of(outputs)
        return linear_cross_entropy(
            hidden, self.head.weight, wanted.contiguous(), ignore_index=IGNORED, reduction="mean",
            float8=self.float8,
        )  # fmt: skip

    def prepare_inputs(self, inputs: Any) -> Any:
        """Inputs of a fused pass: with labels the module would compute its own loss."""
        if not self.checked:
            self._check(inputs)
        return inputs if self.refusal else self._without_labels(inputs)

    def _without_labels(self, inputs: Any) -> Any:
        if self.unfused.kind != "own" or not isinstance(inputs, dict):
            return inputs
        rest = {name: value for name, value in inputs.items() if name != LABELS}
        # A key-value cache serves generation; filling it costs a training pass time.
        return {**rest, "use_cache": False}

    @contextmanager
    def skipping_head(self) -> Iterator[None]:
        """A block in which the head returns its input."""
        self._inside = True
        self.head.skipped = not self.refusal
        try:
            yield
        finally:
            self.head.skipped = self._inside = False

    @torch.no_grad()
    def _check(self, inputs: Any) -> None:
        """Compare fused and unfused logits of one row, uncompiled and without dropout."""
        row = self._without_labels(tree_map(first_row, inputs))
        training = self.module.training
        self.module.eval()
        try:
            with torch.compiler.set_stance("force_eager"):
                self.head.skipped = False
                logits = logits_of(run(self.module, row))
                self.head.skipped = True
                hidden = logits_of(run(self.module, row))
            self.head.skipped = False
            agree = same(logits, self.head(hidden)) if isinstance(hidden, Tensor) else False
        finally:
            self.module.train(training)
        if not agree:
            self.refusal = f"{type(self.module).__name__} changes its head's output"
            self.notes.append(f"kernels: {self.refusal}, and keeps its own loss")
        self.head.skipped = self._inside and agree
        self.checked = True


def why_not_fused(module: nn.Module, anatomy: Anatomy, loss: Loss, settled: SettledPlan) -> str:
    """Why head and loss cannot be fused or would not gain; empty where they can."""
    if not (loss.kind == "cross_entropy" or (loss.kind == "own" and loss.shifted)):
        return "the loss is not a cross-entropy"
    head = anatomy.part(module, anatomy.head or None)
    if type(head) is not nn.Linear or head.bias is not None or "forward" in vars(head):
        return "the module does not end in a plain linear without a bias"
    if not settled.fuses_head(head.out_features):
        return f"{head.out_features:,} classes; it is faster from {FUSED_VOCABULARY:,}"
    return ""


def fuse_head(
    module: nn.Module, anatomy: Anatomy, loss: Loss, *, float8: bool = False
) -> FusedHead:
    """Fuse a head that `why_not_fused` has nothing against with its loss."""
    head: Any = anatomy.part(module, anatomy.head)
    head.skipped = False
    head.forward = MethodType(forward_or_skip, head)
    declared = isinstance(getattr(module, "anatomy", None), Anatomy)
    float8 = float8 and gains(head.in_features, head.out_features)
    return FusedHead(module, head, loss, checked=declared, float8=float8)


def forward_or_skip(head: Any, hidden: Tensor) -> Tensor:
    return hidden if head.skipped else functional.linear(hidden, head.weight)


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
