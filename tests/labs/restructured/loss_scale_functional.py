"""The lab 'loss-scale': the rule as one pure function, the class only holds what it gives."""

import torch


def next_scale(scale, good, patience, overflowed):
    if overflowed:
        return scale * 0.5, 0
    good += 1
    return (2 * scale, 0) if good >= patience else (scale, good)


class Scaler:
    def __init__(self, initial=2.0**16, patience=2000):
        self.scale, self.good_steps, self.patience = initial, 0, patience

    def step(self, optimizer):
        found = [p for group in optimizer.param_groups for p in group["params"]]
        total = torch.stack([p.grad.double().abs().sum() for p in found]).sum()
        fine = bool(torch.isfinite(total))
        if fine:
            torch._foreach_div_([p.grad for p in found], self.scale)
            optimizer.step()
        self.update(not fine)
        return fine

    def update(self, overflowed):
        self.scale, self.good_steps = next_scale(
            self.scale, self.good_steps, self.patience, overflowed
        )


DynamicScale = Scaler
