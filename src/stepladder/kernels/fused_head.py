"""Rung: the output layer fused with its cross-entropy, so that the logits never exist whole.

During a training pass the output layer (head) returns its input unchanged, and the loss takes that
input together with the head's weight (kernels/linear_cross_entropy.py). Outside of one the module
returns logits as before.

Whether a foreign module's output is its head's output, unchanged, cannot be read off its structure:
Gemma soft-caps its logits, others scale them or add terms to their own loss. So before the first
pass one row is tried (prove_head.py), and where the proof fails the module keeps its own loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from stepladder.data import IGNORED
from stepladder.loss import Loss
from stepladder.model import Anatomy, base_model, builtin_shape
from stepladder.model.frozen_linears import has_own_forward
from stepladder.plan import SettledPlan
from stepladder.plan.shared_constants import FUSED_VOCABULARY
from stepladder.seam.pytree import tree_map

from .convert_float8 import gains
from .linear_cross_entropy import linear_cross_entropy
from .prove_head import LABELS, logits_of, why_not_cross_entropy, why_not_its_head


@dataclass(slots=True)
class FusedHead:
    """A module's head and loss, fused unless the module turns out to change its head's output."""

    module: nn.Module
    head: Any  # the output layer
    unfused: Loss
    checked: set[bool]  # modes, training or not, in which the output is known to be the head's
    float8: bool = False  # its matmuls are in fp8
    notes: list[str] = field(default_factory=list)  # where a refusal is reported
    refusal: str = ""  # why the module keeps its own loss; empty while it is fused
    bypassed: bool = False  # while somebody wants to see logits
    _inside: bool = field(default=False, init=False)

    @property
    def loss(self) -> Loss:
        # Without logits the module computes no loss of its own.
        return replace(self.unfused, function=self._loss, takes=lambda outputs: outputs)

    def _loss(self, outputs: Any, targets: Tensor) -> Tensor:
        if self.refusal or self.bypassed:
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
        if self.bypassed:
            return inputs
        if self.module.training not in self.checked and not self.refusal:
            self._check(inputs)
        return inputs if self.refusal else self._without_labels(inputs)

    def _without_labels(self, inputs: Any) -> Any:
        if self.unfused.kind != "own" or not isinstance(inputs, dict):
            return inputs
        rest = {name: value for name, value in inputs.items() if name != LABELS}
        # A key-value cache serves generation; filling it costs a training pass time.
        return {**rest, "use_cache": False} if self._takes_cache else rest

    @contextmanager
    def skipping_head(self) -> Iterator[None]:
        """A block in which the head returns its input."""
        self._inside = True
        self.head.skipped = not (self.refusal or self.bypassed)
        try:
            yield
        finally:
            self.head.skipped = self._inside = False

    @contextmanager
    def returning_logits(self) -> Iterator[None]:
        """A block in which the module returns what it would without this rung."""
        self.bypassed = True
        try:
            yield
        finally:
            self.bypassed = False

    @property
    def _takes_cache(self) -> bool:
        return "use_cache" in signature(base_model(self.module).forward).parameters

    def _own_loss(self, outputs: Any) -> Tensor:
        return self.unfused.function(outputs, None)

    def _check(self, inputs: Any) -> None:
        """Try one row: is the output the head's, and the module's own loss its cross-entropy?"""
        row, forward = tree_map(first_row, inputs), partial(run, self.module)
        self.head.skipped = False
        why_not = why_not_its_head(self.module, self.head, forward, self._without_labels(row))
        if not why_not and self.unfused.kind == "own":
            why_not = why_not_cross_entropy(self.module, self.head, forward, self._own_loss, row)
        if why_not:
            self.refusal = why_not
            self.notes.append(f"kernels: {why_not}, and keeps its own loss")
        self.head.skipped = self._inside and not why_not
        self.checked.add(self.module.training)


def why_not_fused(module: nn.Module, anatomy: Anatomy, loss: Loss, settled: SettledPlan) -> str:
    """Why head and loss cannot be fused or would not gain; empty where they can."""
    if not (loss.kind == "cross_entropy" or (loss.kind == "own" and loss.shifted)):
        return "the loss is not a cross-entropy"
    head = anatomy.part(module, anatomy.head or None)
    if type(head) is not nn.Linear or head.bias is not None or has_own_forward(head):
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
    known = {True, False} if builtin_shape(module) is not None else set()
    float8 = float8 and gains(head.in_features, head.out_features)
    return FusedHead(module, head, loss, checked=known, float8=float8)


def forward_or_skip(head: Any, hidden: Tensor) -> Tensor:
    return hidden if head.skipped else functional.linear(hidden, head.weight)


def run(module: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def first_row(leaf: Any) -> Any:
    return leaf[:1] if isinstance(leaf, Tensor) and leaf.dim() else leaf
