"""Proof by trial that a module's result is its head's output, and its loss that output's
cross-entropy.

Initial weights prove nothing: a soft cap does not show where logits are small, nor a bias that
starts at zero. So during a trial the head does not compute: it returns random logits, small ones
and large ones. The module must return those very numbers, and nothing it returns may depend on a
parameter. What the module does to its head's output then shows, whatever its weights are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from stepladder.data import IGNORED
from stepladder.errors import first_line
from stepladder.model import uncompiled
from stepladder.model.forward_state import state_restored

LABELS = "labels"
SIZES = (1.0, 40.0)  # of random logits: soft caps of 15 to 50 change the large ones
SAME_LOSS = 1e-3  # relative: rounding differs by less

Forward = Callable[[Any], Any]  # the module's result for inputs


def why_not_its_head(module: nn.Module, head: Any, forward: Forward, inputs: Any) -> str:
    """What the module does to its head's output; empty where it returns it unchanged."""
    kind = type(module).__name__.removeprefix("FSDP")  # fully_shard's own subclass
    try:
        with trial(module, head):
            for size in SIZES:
                answers = RandomLogits(head, size)
                with answering(head, answers):
                    found = logits_of(forward(inputs))
                if answers.calls != 1:
                    return f"{kind} calls its head {answers.calls} times"
                if not equal(found, answers.logits) or found.requires_grad:
                    return f"{kind} changes its head's output"
            skipped = Unchanged()
            with answering(head, skipped):
                if not equal(logits_of(forward(inputs)), skipped.hidden):
                    return f"{kind} changes its head's output"
    except Exception as problem:  # a bias of as many classes meets a hidden state, and the like
        return f"{kind} does not run without its head ({first_line(problem)[:120]})"
    return ""


def why_not_cross_entropy(
    module: nn.Module, head: Any, forward: Forward, loss: Callable[[Any], Tensor], inputs: Any
) -> str:
    """What else the module's own loss is than the shifted cross-entropy of its logits."""
    kind = type(module).__name__.removeprefix("FSDP")  # fully_shard's own subclass
    if not isinstance(inputs, dict) or not isinstance(inputs.get(LABELS), Tensor):
        return f"{kind} is not given its labels by that name"
    try:
        with trial(module, head):
            for size in SIZES:
                labels = random_labels(inputs[LABELS], head.out_features)
                given = {**inputs, LABELS: labels}
                constant = RandomLogits(head, size)
                with answering(head, constant):
                    if loss(forward(given)).requires_grad:
                        return f"{kind} adds a term to its loss that does not come from its logits"
                answers = RandomLogits(head, size, gradient=True)
                with answering(head, answers):
                    found = loss(forward(given))
                if not same_loss(found, answers.logits, labels):
                    return f"{kind}'s own loss is not the cross-entropy of its logits"
    except Exception as problem:
        return f"{kind}'s own loss cannot be tried ({first_line(problem)[:120]})"
    return ""


@contextmanager
def trial(module: nn.Module, head: Any) -> Iterator[None]:
    """A context whose passes leave buffers, attributes and random generators as they were."""
    device = head.weight.device
    cuda = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(cuda),
        state_restored(module),
        uncompiled(module),
        torch.enable_grad(),
    ):
        torch.manual_seed(0)
        yield


@contextmanager
def answering(head: Any, answer: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """A context in which the head answers by a function of its input."""
    before = head.forward
    head.forward = answer
    try:
        yield
    finally:
        head.forward = before


class RandomLogits:
    """A head's answer that does not depend on its input's values."""

    logits: Tensor

    def __init__(self, head: Any, size: float, *, gradient: bool = False) -> None:
        self.head, self.size, self.gradient = head, size, gradient
        self.calls = 0

    def __call__(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():  # the type that autocast gives it
            one_class = own_part(self.head.weight)[:1]
            dtype = functional.linear(hidden.flatten(0, -2)[:1], one_class).dtype
        shape = (*hidden.shape[:-1], self.head.out_features)
        drawn = self.size * torch.randn(shape, device=hidden.device)
        self.logits = drawn.to(dtype).requires_grad_(self.gradient)
        return self.logits


class Unchanged:
    """A head's answer that is its input."""

    hidden: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        self.hidden = hidden
        return hidden


def random_labels(labels: Tensor, classes: int) -> Tensor:
    drawn = torch.randint(0, classes, labels.shape, device=labels.device, dtype=labels.dtype)
    ignored = torch.rand(labels.shape, device=labels.device) < 0.2
    ignored[..., -1:] = False
    return drawn.masked_fill(ignored, IGNORED)


def same_loss(found: Tensor, logits: Tensor, labels: Tensor) -> bool:
    """Whether value and gradient are those of the cross-entropy with labels one step ahead."""
    leaf = logits.detach().float().requires_grad_()
    expected = functional.cross_entropy(
        leaf[..., :-1, :].flatten(0, -2), labels[..., 1:].flatten(), ignore_index=IGNORED
    )
    (wanted,) = torch.autograd.grad(expected, leaf)
    (gradient,) = torch.autograd.grad(found, logits)
    off = (gradient.float() - wanted).norm() / wanted.norm()
    return bool((found - expected).abs() <= SAME_LOSS * expected.abs()) and bool(off <= 1e-2)


def own_part(weight: Tensor) -> Tensor:
    """What this rank has of a matrix that may be cut."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def logits_of(outputs: Any) -> Any:
    return getattr(outputs, "logits", outputs)


def equal(found: Any, expected: Tensor | None) -> bool:
    if not isinstance(found, Tensor) or expected is None or found.shape != expected.shape:
        return False
    return torch.equal(found.float(), expected.float())
