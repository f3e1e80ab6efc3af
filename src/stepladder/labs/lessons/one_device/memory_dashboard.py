"""The memory dashboard: who holds memory at each moment of a step.

One number at the end of a step says that memory is short, not who has it. So read it at every
moment that matters, after each layer's forward and each layer's backward and after the optimizer's
step, and by owner: parameters, gradients, the optimizer's state, activations.

The picture is always the same. Forward climbs as activations are kept; backward gives them back
while gradients come; Adam's state appears in the first step and stays. The peak is at the turning
point, not at the end. Two calls move it: `zero_grad(set_to_none=True)` before forward (and not
after it) lets gradients not stand beside the activations, and an optimizer without state has
nothing to add.

Claim: the peak of a step stands between forward and backward; gradients that are cleared late raise
it by just their own size; the dashboard's owners are those of stepladder.measure.MemoryMeter, to
the byte.

Predict: The parameters take 66,560 bytes. How many does Adam's state take after two steps?
[optimizer]

Often wrong:
- the optimizer's state is looked for before it exists and never again
- gradients that are None are counted
- the peak is read at the end of the step
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stepladder.labs.equipment.saved_bytes import Kept

Moment = dict[str, Any]


class Dashboard:
    """Reads memory by owner whenever it is asked."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, kept: Kept) -> None:
        self.model, self.optimizer, self.kept = model, optimizer, kept
        self.moments: list[Moment] = []

    def owners(self) -> dict[str, int]:
        """Bytes by owner, now."""
        parameters = list(self.model.parameters())
        # >>> The bytes that each owner holds at this moment.
        # ??? When is a parameter's gradient None?
        # ??? optimizer.state has a dict for each parameter, and not everything in those is a
        # ???   tensor.
        # ??? Tensor.nbytes is a tensor's size. self.kept counts what autograd keeps.
        gradients = [p.grad for p in parameters if p.grad is not None]
        state = [v for entry in self.optimizer.state.values() for v in entry.values()]
        return {
            "parameters": sum(p.nbytes for p in parameters),
            "gradients": sum(g.nbytes for g in gradients),
            "optimizer": sum(v.nbytes for v in state if isinstance(v, Tensor)),
            "activations": self.kept.bytes,
        }
        # <<< return dict.fromkeys(("parameters", "gradients", "optimizer", "activations"), 0)

    def note(self, moment: str) -> None:
        owners = self.owners()
        self.moments.append({"moment": moment, **owners, "total": sum(owners.values())})

    def peak(self) -> Moment:
        """The moment at which most was held."""
        # >>> The moment at which most was held.
        # ??? self.moments has all of them, each with a total.
        # ??? max takes a key.
        return max(self.moments, key=lambda moment: moment["total"])
        # <<< return self.moments[-1]


def step(
    model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, *, late: bool
) -> Dashboard:
    """One step under the dashboard; gradients are cleared after forward where `late`."""
    with Kept(model) as kept:
        board = Dashboard(model, optimizer, kept)
        # >>> Have no old gradients from here on, unless they are to be cleared late.
        # ??? Which gradients stand in memory when a step begins, and who still needs them?
        # ??? See how it is done below, where it is late.
        if not late:
            optimizer.zero_grad()
        # <<< pass
        board.note("start")
        for number, layer in enumerate(model):
            x = layer(x)
            board.note(f"forward {number}")
            x.register_hook(lambda _, number=number: board.note(f"back {number}"))
        loss = x.square().mean()
        board.note("loss")
        if late:
            optimizer.zero_grad()
        loss.backward()
        board.note("backward")
        optimizer.step()
        board.note("step")
    return board


def network(width: int = 64, depth: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)))


def measure() -> list[Moment]:
    rows = []
    for late in (False, True):
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            board = step(model, optimizer, torch.randn(512, 64), late=late)
        word = "cleared late" if late else "cleared first"
        rows += [{"time": i, "gradients are": word, **m} for i, m in enumerate(board.moments)]
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
