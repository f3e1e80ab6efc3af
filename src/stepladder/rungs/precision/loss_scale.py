"""Rung: loss scaling for fp16: multiply the loss so that small gradients do not underflow.

The rule is the usual one: halve the scale after a step that overflowed, double it after a number of
steps that did not. All of it is arithmetic on the device, and no step waits for a number to reach
the host: the optimizer divides the gradients by the scale (train/optimizer), all ranks agree on
whether one overflowed, and `update` takes that as a tensor. A plan without scaling gets a
`LossScale` that changes nothing, so callers need not ask.

torch's GradScaler follows the same rule, but reads the overflow on the host in each step and does
not know of ranks that own different shards.
"""

from __future__ import annotations

import torch
from torch import Tensor

INITIAL = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5  # powers of two change exponents and no mantissa
PATIENCE = 2000  # steps without overflow before the scale grows
FLOOR, CAP = 2.0**-24, 2.0**127  # the least fp16 number; the largest power of two in float32


class LossScale:
    """The factor of the loss, and the rule by which it changes."""

    def __init__(
        self,
        device: torch.device,
        *,
        enabled: bool = True,
        initial: float = INITIAL,
        patience: int = PATIENCE,
        ways: int = 1,
    ) -> None:
        """Start so that fp16 overflows where it would on one device.

        Args:
            ways: the loss is also multiplied by this, to undo an average over so many ranks.
        """
        self.enabled, self.patience = enabled, patience
        self.scale = torch.tensor(initial / ways if enabled else 1.0, device=device)
        self.good_steps = torch.tensor(0, dtype=torch.int32, device=device)

    @property
    def value(self) -> Tensor | None:
        """The scale, on its device; None where there is no scaling."""
        return self.scale if self.enabled else None

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call backward on."""
        return loss * self.scale if self.enabled else loss

    @torch.no_grad()
    def update(self, overflowed: Tensor) -> None:
        """Set the next step's scale from whether this one overflowed on any rank."""
        if not self.enabled:
            return
        bad = overflowed.reshape(()) > 0
        good_steps = self.good_steps + 1
        due = good_steps == self.patience
        grown = torch.where(due, self.scale * GROWTH, self.scale)
        scale = torch.where(bad, self.scale * BACKOFF, grown)
        self.scale.copy_(scale.clamp(FLOOR, CAP))
        self.good_steps.copy_(torch.where(bad | due, 0, good_steps))

    def state_dict(self) -> dict[str, float]:
        if not self.enabled:
            return {}
        return {"scale": self.scale.item(), "good_steps": self.good_steps.item()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from a saved state; after a run without scaling start over."""
        if self.enabled and state:
            self.scale.fill_(state["scale"])
            self.good_steps.fill_(state["good_steps"])
