"""Lesson: why fp16 needs a scaled loss, and dynamic loss scaling from scratch.

A gradient is often small. In float32 the smallest number is about 1e-45, in float16 it is 2^-24,
about 6e-8: anything under half of that becomes zero, and a weight whose gradient is zero does not
learn. The largest float16 number, on the other side, is only 65,504.

Gradients are proportional to the loss. Multiply the loss by 65,536 and every gradient on the way
back is 65,536 times as large: the small ones survive. Divide by the same factor once they have
arrived in float32, and nothing has changed except that they are not zero. Since the factor is a
power of two, multiplying moves exponents only; not one digit is rounded.

Which factor? As large as possible, and that is found by trying:

    an overflow somewhere  →  skip this step, halve the scale
    `patience` good steps  →  double the scale

Skipping is right: the gradients of that step are infinite, so there is nothing to learn from it.
The scale then hovers just below the overflow, and a step is lost now and then to feel for it.

**Claim**: where gradients are about 1e-9, fp16 without scaling turns all of the first layer's to
zero and that layer never moves. With dynamic scaling, begun far too high, the scale is found in a
few skipped steps, none are lost, and the loss falls. `run` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class DynamicScale:
    """The scale and its rule. Plain numbers, so that every line can be read and tried."""

    def __init__(self, initial: float = 2.0**16, patience: int = 2000) -> None:
        self.scale = initial
        self.patience = patience
        self.good_steps = 0

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss from which to go backward: all gradients grow by the same factor."""
        return loss * self.scale

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Unscale the gradients and step, or skip if one of them overflowed; say which."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        present = [gradient for gradient in gradients if gradient is not None]
        # Looked at before the division: infinity divided by anything is still infinity, so after
        # would do too, but nobody should have to think about that.
        finite = all(bool(gradient.isfinite().all()) for gradient in present)
        if finite:
            for gradient in present:
                gradient.mul_(1 / self.scale)
            optimizer.step()
        self.update(overflowed=not finite)
        return finite

    def update(self, overflowed: bool) -> None:
        """Halve after an overflow; double after enough steps in a row without one."""
        if overflowed:
            self.scale, self.good_steps = self.scale / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == self.patience:
            self.scale, self.good_steps = self.scale * 2, 0


@dataclass(frozen=True, slots=True)
class Step:
    loss: float
    scale: float  # the one this step was made with
    skipped: bool
    zero_share: float  # of the first layer's gradients


def run(scale: DynamicScale, *, num_steps: int = 60, broken_at: int = 12) -> list[Step]:
    """Train a small network in fp16 on a loss with tiny gradients; one batch is broken."""
    model, optimizer = small_network()
    return [
        train_step(model, optimizer, scale, batch(step, broken=step == broken_at))
        for step in range(num_steps)
    ]


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, scale: DynamicScale, data: Tensor
) -> Step:
    """One step as any loop makes it; scaling is three words in it."""
    optimizer.zero_grad()
    loss = tiny_loss(model, data)
    used = scale.scale
    scale.scaled(loss).backward()
    first = next(model.parameters()).grad
    assert first is not None
    zero_share = (first == 0).float().mean().item()
    stepped = scale.step(optimizer)
    return Step(loss.item(), used, not stepped, zero_share)


def small_network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e6)  # large, since gradients are tiny


def batch(step: int, broken: bool = False) -> Tensor:
    """Numbers around one; or around a million, which float16 does not have."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 16, generator=generator) * (1e6 if broken else 1.0)


def tiny_loss(model: nn.Module, data: Tensor) -> Tensor:
    """Predict the mean of the inputs; weighed so little that gradients are about 1e-9."""
    with torch.autocast("cpu", dtype=torch.float16):
        answer = model(data)
    target = data.mean(dim=1, keepdim=True)
    return 1e-7 * (answer.float() - target).square().mean()
