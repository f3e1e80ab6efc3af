"""Rung: multiply the loss so that small gradients survive fp16, with a factor found as we go.

The rule is the usual one: halve the factor after a step with an overflow, double it after a run of
steps without. Everything is arithmetic on the device and no step waits for a number to reach the
host: `unscale` says whether anything overflowed as a tensor, all ranks agree on it, `update` takes
it. A plan that needs no scaling gets a `LossScale` that changes nothing, so nobody asks twice.

torch's GradScaler does the same but reads the overflow on the host at each step, and knows
nothing of ranks that hold different slices.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

INITIAL = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5  # powers of two, so that scaling changes exponents and no digit
PATIENCE = 2000  # good steps before the scale grows
FLOOR, CAP = 2.0**-24, 2.0**127  # the least fp16 number; the largest power of two in float32


class LossScale:
    """A factor for the loss, and the rule by which it changes."""

    def __init__(
        self,
        device: torch.device,
        *,
        enabled: bool = True,
        initial: float = INITIAL,
        patience: int = PATIENCE,
        ways: int = 1,
    ) -> None:
        """Start from a factor that, with the number of `ways` a loss is multiplied by to undo an
        average over ranks, makes fp16 overflow where it would on one device."""
        self.enabled, self.patience = enabled, patience
        self.scale = torch.tensor(initial / ways if enabled else 1.0, device=device)
        self.good_steps = torch.tensor(0, dtype=torch.int32, device=device)

    @property
    def value(self) -> Tensor | None:
        """The factor, on its device; None where there is no scaling."""
        return self.scale if self.enabled else None

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to go backward from."""
        return loss * self.scale if self.enabled else loss

    @torch.no_grad()
    def unscale(self, gradients: Iterable[Tensor]) -> Tensor:
        """Divide this rank's gradients by the factor, in place; say (1 or 0) if any overflowed."""
        overflowed = torch.zeros((), device=self.scale.device)
        if self.enabled:
            inverse = self.scale.double().reciprocal().float()
            mine = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
            torch._amp_foreach_non_finite_check_and_unscale_(mine, overflowed, inverse)
        return overflowed

    @torch.no_grad()
    def update(self, overflowed: Tensor) -> None:
        """Choose the next factor, given what all ranks agreed happened to this one."""
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
        """Go on from a saved state; a run that did not scale left none, and we begin afresh."""
        if self.enabled and state:
            self.scale.fill_(state["scale"])
            self.good_steps.fill_(state["good_steps"])
