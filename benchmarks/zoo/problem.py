"""A training problem of the zoo: a tiny module with random weights, three batches and a loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

ROWS, LENGTH, VOCAB, STEPS = 8, 16, 64, 3
PAD = 0
DROPOUTS = ("p", "dropout", "drop_prob", "dropout_prob", "attention_dropout", "dropout_rate")

Batches = list[Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One architecture with what a training loop needs."""

    module: nn.Module
    batches: Batches  # one a step, as `run.step` takes them
    loss: str | Callable[[Any, Any], Tensor] | None = None  # as `sl.climb` takes it
    lr: float = 0.1
    absent: dict[str, str] = field(default_factory=dict)  # what the architecture does not have

    def plain_loss(self, module: nn.Module, batch: Any) -> Tensor:
        """The loss of a whole batch as a script would write it, without stepladder."""
        if self.loss is None:
            outputs = module(**batch) if isinstance(batch, dict) else module(batch)
            return outputs if isinstance(outputs, Tensor) else outputs.loss
        inputs, targets = batch
        if self.loss == "cross_entropy":
            logits = module(inputs)
            return nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1)
            )
        if self.loss == "squared_error":
            return nn.functional.mse_loss(module(inputs).float(), targets)
        assert callable(self.loss)
        return self.loss(module(inputs), targets)


@torch.no_grad()
def randomise(module: nn.Module, seed: int) -> nn.Module:
    """Give every parameter random values, so that no zero or one hides an error; no dropout."""
    draw = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=draw).to(parameter.dtype)
        if parameter.dim() < 2:
            parameter.add_(noise, alpha=0.1)  # biases and norms stay near zero and one
        else:
            parameter.copy_(noise / math.sqrt(parameter[0].numel()))
    for part in module.modules():
        for name in DROPOUTS:
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module


def draw(step: int, seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + step)


def tokens(step: int, *shape: int, low: int = 4, high: int = VOCAB) -> Tensor:
    return torch.randint(low, high, shape or (ROWS, LENGTH), generator=draw(step))


def lengths(step: int) -> Tensor:
    """Rows of very different lengths, the longest as long as the batch."""
    some = torch.randint(3, LENGTH + 1, (ROWS,), generator=draw(step, 1))
    some[step % ROWS] = LENGTH
    return some


def causal(step: int) -> dict[str, Tensor]:
    """Rows of different lengths with padding on the right, as a tokenizer makes them."""
    mask = (torch.arange(LENGTH) < lengths(step).unsqueeze(1)).long()
    ids = tokens(step) * mask
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, -100),
    }


def masked(step: int) -> dict[str, Tensor]:
    """A masked language model's batch: a third of the tokens are targets."""
    batch = causal(step)
    chosen = torch.rand(ROWS, LENGTH, generator=draw(step, 2)) < 0.35
    chosen[:, 0] = True  # no row without a target
    return {**batch, "labels": batch["labels"].masked_fill(~chosen, -100)}


def classes(step: int, count: int = 10) -> Tensor:
    return torch.randint(0, count, (ROWS,), generator=draw(step, 3))


def numbers(step: int, *shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, generator=draw(step, 4))


def three(make: Callable[[int], Any]) -> Batches:
    return [make(step) for step in range(STEPS)]
