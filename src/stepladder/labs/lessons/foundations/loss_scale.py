"""How the loss scale moves.

A gradient is often small. The smallest float16 is 2^-24, about 6e-8: less than half of that becomes
zero, and a weight whose gradient is zero does not learn. The largest float16, on the other side, is
only 65,504.

Gradients are proportional to the loss. Multiply the loss by 65,536 and every gradient on the way
back is 65,536 times as large: the small ones survive. Divide by the same factor once they have
arrived in float32, and nothing has changed except that they are not zero. The factor is a power of
two, so multiplying moves exponents only: not one digit is rounded.

Which factor? As large as possible, and that is found by trying:

    an overflow somewhere  →  skip this step, halve the scale
    `patience` good steps  →  double the scale

Claim: where gradients are about 1e-9, fp16 without scaling turns all of the first layer's to zero
and that layer never moves. With a scale that moves, begun far too high, a few steps are skipped and
then the loss falls; the scales are those of torch.amp.GradScaler, step for step.

Predict: The scale begins at 2^44 = 1.76e13, far too high, and doubles after 8 good steps in a row.
What is it at the last of 60 steps, where step 40 overflows whatever the scale? [scale]

Often wrong:
- the optimizer steps on gradients that are still scaled
- an overflow halves the scale but the step is made all the same
- good steps are counted on across an overflow
- the scale never grows again
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DynamicScale:
    """The scale and its rule. Plain numbers, so that every line can be read and tried."""

    def __init__(self, initial: float = 2.0**16, patience: int = 2000) -> None:
        self.scale = initial
        self.patience = patience
        self.good_steps = 0

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Unscale the gradients and step, or skip if one of them overflowed; say which."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        # >>> Whether every number of every gradient is finite.
        # ??? One inf or nan is enough to spoil a step. In how many places could it stand?
        # ??? Tensor.isfinite answers for each number, Tensor.all for all of them.
        finite = all(bool(g.isfinite().all()) for g in gradients)
        # <<< finite = True
        # >>> If so, make the optimizer's step with the true gradients; if not, leave the model as
        # >>> it is.
        # ??? The loss was multiplied before backward. What is each gradient, compared with the true
        # ???   one?
        # ??? The optimizer reads p.grad: what it reads must be right by then, so change it in
        # ???   place.
        # ??? What may a gradient of inf do to a weight?
        if finite:
            for gradient in gradients:
                gradient.div_(self.scale)
            optimizer.step()
        # <<< optimizer.step()
        self.update(overflowed=not finite)
        return finite

    def update(self, overflowed: bool) -> None:
        """Halve after an overflow; double after `patience` steps in a row without one."""
        # >>> Move the scale by the rule above, and count good steps in a row.
        # ??? After an overflow two things begin anew or change: which?
        # ??? When the count reaches self.patience, the scale grows. From where does the count go
        # ???   on?
        if overflowed:
            self.scale /= 2
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.patience:
            self.scale *= 2
            self.good_steps = 0
        # <<< raise NotImplementedError


def tiny_loss(model: nn.Module, data: Tensor) -> Tensor:
    """Predict the mean of the inputs; weighed so little that gradients are about 1e-9."""
    with torch.autocast("cpu", dtype=torch.float16):
        answer = model(data)
    return 1e-7 * (answer.float() - data.mean(dim=1, keepdim=True)).square().mean()


def train(scale: DynamicScale, num_steps: int = 60, broken_at: int = 40) -> list[dict[str, float]]:
    """Train in fp16; one batch is a million times too large, which float16 does not have."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e6)  # large, since gradients are tiny
    rows = []
    for step in range(num_steps):
        data = torch.randn(8, 16) * (1e6 if step == broken_at else 1)
        optimizer.zero_grad()
        loss = tiny_loss(model, data)
        used = scale.scale
        (loss * used).backward()
        zero = (model[0].weight.grad == 0).float().mean().item()  # type: ignore[union-attr]
        skipped = not scale.step(optimizer)
        row = {"step": step, "loss": loss.item(), "scale": used, "skipped": skipped}
        rows.append({**row, "zero_share": zero})
    return rows


def measure() -> list[dict[str, float]]:
    return train(DynamicScale(initial=2.0**44, patience=8))


if __name__ == "__main__":
    for row in measure():
        print(row)
