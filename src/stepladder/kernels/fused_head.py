"""Rung: the output layer fused with its cross-entropy, so that the logits never exist whole.

During a training pass the output layer (head) returns its input unchanged, and the loss takes that
input together with the head's weight (kernels/linear_cross_entropy.py). Outside of one the module
returns logits as before.

Whether a foreign module's output is its head's output, unchanged, cannot be read off its structure:
Gemma soft-caps its logits, others scale them or add terms to their own loss. So before the first
pass one row is tried (prove_head.py), and where the proof fails the module keeps its own loss.

Where ranks hold slices of a matrix, the loss reads it as the module's own pass does: gathered (ZeRO
2 and 3 keep the head's unit gathered until backward, or until the loss is there), or this rank's
classes (tensor parallel). In a pipeline the last stage has the head, and the proof runs that stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepladder.data import IGNORED
from stepladder.loss import Loss
from stepladder.model import Anatomy, base_model, builtin_shape
from stepladder.model.call_module import call
from stepladder.model.frozen_linears import has_own_forward
from stepladder.plan import SettledPlan
from stepladder.plan.shared_constants import FUSED_VOCABULARY
from stepladder.seam.pytree import tree_map

from .class_slices import ClassSlice
from .convert_float8 import gains
from .linear_cross_entropy import linear_cross_entropy
from .prove_head import LABELS, logits_of, own_part, why_not_cross_entropy, why_not_its_head


@dataclass(frozen=True, slots=True)
class HeadSlice:
    """A head of which each rank has some of the classes."""

    classes: ClassSlice
    enter: Callable[[Tensor], Tensor]  # what the head does to its input; backward adds up shares


@dataclass(slots=True)
class FusedHead:
    """A module's head and loss, fused unless the module turns out to change its head's output."""

    module: nn.Module
    head: Any  # the output layer
    unfused: Loss
    checked: set[bool]  # modes, training or not, in which the output is known to be the head's
    float8: bool = False  # its matmuls are in fp8
    slice: HeadSlice | None = None  # where each of several ranks has some of the classes
    splits_backward: bool = False  # it runs twice, for inputs and for weights
    in_pipeline: bool = False  # all stages together have the last one prove its head
    notes: list[str] = field(default_factory=list)  # where a refusal is reported
    refusal: str = ""  # why the module keeps its own loss; empty while it is fused
    bypassed: bool = False  # while somebody wants to see logits
    _inside: bool = field(default=False, init=False)

    @property
    def loss(self) -> Loss:
        own = self.unfused.kind == "own"  # without logits the module computes none
        takes = (lambda outputs: outputs) if own else self.unfused.takes
        return replace(self.unfused, function=self._loss, takes=takes, parameters=self._matrix)

    def _matrix(self) -> tuple[Tensor, ...]:
        return () if self.refusal or self.bypassed else (own_part(self.head.weight),)

    def _loss(self, outputs: Any, targets: Tensor) -> Tensor:
        if self.refusal or self.bypassed:
            return self.unfused.function(outputs, targets)
        labels = functional.pad(targets[..., 1:], (0, 1), value=IGNORED)
        wanted = labels if self.unfused.kind == "own" else targets
        hidden, part = logits_of(outputs), self.slice
        return linear_cross_entropy(
            part.enter(hidden) if part else hidden, own_part(self.head.weight), wanted.contiguous(),
            ignore_index=IGNORED, reduction="mean", float8=self.float8,
            classes=part.classes if part else None, in_place=not self.splits_backward,
        )  # fmt: skip

    @property
    def note(self) -> str:
        """What is said of a module that keeps its own loss."""
        return f"kernels: {self.refusal}, and keeps its own loss" if self.refusal else ""

    def prepare_inputs(self, inputs: Any) -> Any:
        """Inputs of a fused pass: with labels the module would compute its own loss."""
        if self.bypassed:
            return inputs
        if self.module.training not in self.checked and not (self.refusal or self.in_pipeline):
            self.prove(partial(call, self.module), tree_map(first_row, inputs))
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
            if not torch.is_grad_enabled():
                for free in self.head.after_loss:
                    free()

    @contextmanager
    def returning_logits(self) -> Iterator[None]:
        """A block in which the module returns what it would without this rung."""
        before, self.bypassed = self.bypassed, True
        try:
            yield
        finally:
            self.bypassed = before

    @property
    def _takes_cache(self) -> bool:
        return "use_cache" in signature(base_model(self.module).forward).parameters

    def _own_loss(self, outputs: Any) -> Tensor:
        return self.unfused.function(outputs, None)

    def prove(self, forward: Callable[[Any], Any], row: Any) -> None:
        """Is the module's output its head's, and its own loss that output's cross-entropy?"""
        self.head.skipped = False
        why_not = why_not_its_head(self.module, self.head, forward, self._without_labels(row))
        if not why_not and self.unfused.kind == "own":
            why_not = why_not_cross_entropy(self.module, self.head, forward, self._own_loss, row)
        if why_not:
            self.refusal = why_not
            self.notes.append(self.note)
        self.head.skipped = self._inside and not why_not
        self.checked.add(self.module.training)


def why_not_fused(
    module: nn.Module, anatomy: Anatomy, loss: Loss, settled: SettledPlan, *, cut: bool = False
) -> str:
    """Why head and loss cannot be fused or would not gain; empty where they can.

    Args:
        cut: tensor parallelism has replaced a plain head's forward.
    """
    if not (loss.kind == "cross_entropy" or (loss.kind == "own" and loss.shifted)):
        return "the loss is not a cross-entropy"
    head = anatomy.part(module, anatomy.head or None)
    replaced = not cut and isinstance(head, nn.Module) and has_own_forward(head)
    if type(head) is not nn.Linear or head.bias is not None or replaced:
        return "the module does not end in a plain linear without a bias"
    if not settled.fuses_head(head.out_features):
        return f"{head.out_features:,} classes; it is faster from {FUSED_VOCABULARY:,}"
    return ""


def fuse_head(
    module: nn.Module,
    anatomy: Anatomy,
    loss: Loss,
    *,
    part: HeadSlice | None = None,
    settled: SettledPlan,
) -> FusedHead:
    """Fuse a head that `why_not_fused` has nothing against with its loss."""
    head: Any = anatomy.part(module, anatomy.head)
    head.skipped, head.after_loss = False, []
    head.whole_forward = head.forward  # a bound method: a copy of the module has its own
    head.forward = MethodType(forward_or_skip, head)
    known = {True, False} if builtin_shape(module) is not None else set()
    float8 = settled.float8 and part is None and gains(head.in_features, head.out_features)
    splits, piped = settled.plan.schedule.kind == "zero-bubble", settled.layout.pipeline > 1
    return FusedHead(module, head, loss, known, float8, part, splits, piped)


def forward_or_skip(head: Any, hidden: Tensor) -> Tensor:
    return hidden if head.skipped else head.whole_forward(hidden)


def fused_head_in(module: nn.Module) -> Any | None:
    """The output layer that `fuse_head` has fused with its loss; None where there is none here.

    It says whether its logits are `skipped`, and calls `after_loss` when the loss of a pass
    without a backward is there.
    """
    return next((part for part in module.modules() if "after_loss" in vars(part)), None)


def first_row(leaf: Any) -> Any:
    return leaf[:1] if isinstance(leaf, Tensor) and leaf.dim() else leaf
