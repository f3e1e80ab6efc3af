"""Why weights are kept in float32: mixed precision from scratch.

Next to 1.0, float16 has the numbers 1 - 1/2048 and 1 + 1/1024 and nothing between. A weight of 1.0
that is to move by 0.0001 rounds back to 1.0: the step is lost, and so is the next. The way out is
two copies of every weight:

    master   float32   the truth; the optimizer moves it, however little
    working  float16   the master rounded; forward and backward use it, and are fast

and a step of four parts: forward and backward with the working copy; give the master its true
gradient; let the optimizer move the master; round the master into the working copy. Small steps add
up in the master until the rounded copy moves too.

torch.autocast is the same idea with the working copy made on the fly: parameters are float32, and
each product rounds its weights just before it runs. The two agree bit for bit.

Claim: next to a float32 master a thousand small pushes arrive where they should, and without one
they do not. A network trained so has the same bits as under torch.autocast.

Predict: A float16 weight of 1.0, without a master, is pushed up by 0.0001 a thousand times. Where
is it then? [float16 alone]

Often wrong:
- the working copy is never refreshed
- gradients reach the master still scaled
- gradients are divided by the scale in float16
- the working copy's gradients are never cleared
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class MasterWeights:
    """A module worked with in float16 and trained in float32."""

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.master = list(module.float().parameters())
        self.working = copy.deepcopy(module).half()
        self.optimizer = make_optimizer(self.master)

    def step(self, loss_of: Callable[[nn.Module], Tensor], scale: float = 1.0) -> float:
        """Make one step on a loss, given as a function of the module to run."""
        loss = loss_of(self.working)
        (loss * scale).backward()
        for master, working in zip(self.master, self.working.parameters()):
            assert working.grad is not None
            # >>> Give the master its true gradient, in float32, and leave none in the working copy.
            # ??? The loss was multiplied by the scale before backward. What does that make of every
            # ???   gradient?
            # ??? 2^-24 is the smallest number of float16. What becomes of 2^-20, divided by 2^10,
            # ???   in float16? In float32?
            # ??? backward adds to a gradient that is already there.
            master.grad = working.grad.float() / scale
            working.grad = None
            # <<< master.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for master, working in zip(self.master, self.working.parameters()):
                # >>> Let the working copy be the master once more, rounded.
                # ??? Nobody has told the working copy that the master moved.
                # ??? Tensor.copy_ writes in place and converts between types.
                working.copy_(master)
                # <<< pass
        return loss.item()


def push(by: float, times: int, *, master: bool) -> float:
    """A weight of 1, pushed up so often by so little: where the copy in use arrives."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)

    def pushing(module: nn.Module) -> Tensor:
        return -by * module.weight.float().sum()  # type: ignore[operator]

    if master:
        kept = MasterWeights(layer, lambda parameters: torch.optim.SGD(parameters, lr=1.0))
        for _ in range(times):
            kept.step(pushing)
        return kept.master[0].item()
    narrow = layer.half()
    for _ in range(times):
        pushing(narrow).backward()
        with torch.no_grad():
            narrow.weight -= narrow.weight.grad  # type: ignore[arg-type]
        narrow.weight.grad = None
    return narrow.weight.item()


def measure() -> list[dict[str, float]]:
    return [
        {
            "pushes of 0.0001": times,
            "float16 alone": push(1e-4, times, master=False),
            "with a master": push(1e-4, times, master=True),
        }
        for times in (1, 10, 100, 1000)
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
