"""ZeRO by hand: who needs to keep what.

Training with Adam in fp32 keeps 16 bytes for each parameter: the weight 4, its gradient 4, Adam's
two moments 8. Under data parallel every rank keeps all of it, n times the same. ZeRO (Rajbhandari
and others, 2020) lets rank r care for the r-th part only:

    stage 1    moments of one's own part. Every rank steps its part, then all gather the weights
    stage 2    gradients too: not added up everywhere (all-reduce) but where they are needed
               (reduce-scatter), which sends half as much
    stage 3    weights too, gathered layer by layer: that is the lab called full sharding

An element of Adam's step looks at nothing but its own gradient and moments, so a part can be
stepped alone, and the result is the same.

Claim: on 2 ranks stages 1 and 2 end with the weights of ZeroRedundancyOptimizer to six digits;
a rank keeps 12 and 10 bytes a parameter where data parallel keeps 16. Where DeepSpeed is installed,
measure() trains with its stages 1, 2 and 3 too, to the same loss.

Predict: How many bytes a parameter does each of 64 ranks keep at stage 2?
[bytes_on_64_ranks; who = formula, stage 2]

Often wrong:
- every rank keeps moments for all parameters
- the stepped parts are not gathered
- the gradients are summed but not divided, which Adam hides
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from stepladder.labs.equipment.deepspeed import train_with_deepspeed
from stepladder.labs.equipment.lab_ranks import on_ranks

STEPS, RATE = 8, 0.01


def bytes_a_parameter(stage: int, ways: int) -> float:
    """What a rank keeps for each parameter of the model: weight 4, gradient 4, moments 8."""
    # >>> What a rank keeps for each parameter of the model: weight 4, gradient 4, moments 8 at
    # >>> stage 0.
    # ??? Which of the three does each stage divide among the ranks?
    # ??? A stage does what the stages before it do, too.
    weight, gradient, moments = 4.0, 4.0, 8.0
    moments /= ways if stage >= 1 else 1
    gradient /= ways if stage >= 2 else 1
    weight /= ways if stage >= 3 else 1
    return weight + gradient + moments
    # <<< return 16.0


class ZeroAdam:
    """Adam for a model whose ranks keep the moments of one part each."""

    def __init__(self, model: nn.Module, stage: int) -> None:
        self.model, self.stage = model, stage
        # >>> This rank's part of all weights, as one parameter of its own.
        # ??? parameters_to_vector lays all weights end to end.
        # ??? Adam's moments are as long as what it is given. How long should that be?
        # ??? The optimizer wants a parameter with memory of its own: off the graph, and copied.
        whole = parameters_to_vector(model.parameters()).detach()
        self.mine = nn.Parameter(whole.chunk(dist.get_world_size())[dist.get_rank()].clone())
        # <<< self.mine = nn.Parameter(parameters_to_vector(model.parameters()).detach().clone())
        self.adam = torch.optim.Adam([self.mine], lr=RATE)  # its moments are as long as the part

    def own_gradient(self) -> Tensor:
        """This rank's part of the mean gradient over all ranks."""
        rank, ways = dist.get_rank(), dist.get_world_size()
        whole = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
        if self.stage == 1:
            # >>> Stage 1: this rank's part of the mean gradient, added up everywhere.
            # ??? Which collective leaves the sum on every rank?
            # ??? Of the mean, only one part is asked for here.
            dist.all_reduce(whole)
            return whole.chunk(ways)[rank] / ways
            # <<< return whole
        # >>> Stage 2: the same part, but nobody adds up what is not theirs.
        # ??? Which collective adds up and leaves each rank one part?
        # ??? It takes an empty part, and the list of all parts of what this rank has.
        part = torch.empty_like(self.mine.data)
        dist.reduce_scatter(part, list(whole.chunk(ways)))
        return part / ways
        # <<< raise NotImplementedError

    def step(self) -> None:
        """Step the own part, then give everybody the whole."""
        self.mine.grad = self.own_gradient()
        self.adam.step()
        # >>> Give the model everybody's stepped parts.
        # ??? Each rank has stepped one part. Who has the others?
        # ??? dist.all_gather fills a list, and vector_to_parameters writes one vector into a model.
        parts = [torch.empty_like(self.mine.data) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.mine.data)
        vector_to_parameters(torch.cat(parts), self.model.parameters())
        # <<< pass


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))


def make_rows(step: int) -> tuple[Tensor, Tensor]:
    """This rank's rows."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
    return x, x.cumsum(dim=1)


def train(stage: int) -> dict[str, Any]:
    model = make_model()
    optimizer = ZeroAdam(model, stage)
    for step in range(STEPS):
        model.zero_grad()
        x, y = make_rows(step)
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    moments = optimizer.adam.state[optimizer.mine]["exp_avg"].numel()
    weights = parameters_to_vector(model.parameters()).detach()
    return {"loss": loss.item(), "moments": moments, "weights": weights}


def measure() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"who": f"by hand, stage {stage}", "loss": on_ranks(train, 2, stage)[0]["loss"]}
        for stage in (1, 2)
    ]
    rows += train_with_deepspeed(make_model, make_rows, STEPS, RATE)
    for stage in range(4):
        kept = {f"bytes_on_{ways}_ranks": bytes_a_parameter(stage, ways) for ways in (2, 8, 64)}
        rows.append({"who": f"formula, stage {stage}", **kept})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
