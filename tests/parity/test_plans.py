"""Every rung computes what one device computes: losses and parameters after ten steps."""

import pytest
import torch

from stepladder.train import climb

from ..ranks import run
from ..train.toys import llama, ragged

pytestmark = pytest.mark.xdist_group("ranks")


def share_of(batch, data_index: int, ways: int, micro: int):
    """This rank's rows of a global batch: pass by pass, the stretch its data index names."""
    rows = torch.arange(len(batch[0]))
    mine = (rows // micro) % ways == data_index
    return tuple(tensor[mine] for tensor in batch)


def learn(plan: str, make, optimizer: str, steps: int = 4, micro: int = 3):
    taken = climb(
        make(),
        loss="cross_entropy",
        optimizer=optimizer,
        plan=f"{plan} micro={micro}",
        device="cpu",
    )
    world = taken.world
    ways = world.layout.data_ways
    losses, norms = [], []
    for batch in ragged(steps):
        report = taken.step(share_of(batch, world.data_index, ways, micro))
        losses.append(report.loss)
        norms.append(report.grad_norm)
    return losses, norms


PLANS = ["fp32 ddp", "fp32 zero1", "fp32 zero2", "fp32 zero3"]


@pytest.mark.parametrize("optimizer", ["sgd lr=0.5", "adamw lr=1e-2 clip=0.5"])
@pytest.mark.parametrize("plan", PLANS)
def test_two_ranks_compute_what_one_does(plan, optimizer):
    expected, sizes = learn("fp32", llama, optimizer)
    for losses, norms in run(learn, 2, plan, llama, optimizer, init=False):
        assert losses == pytest.approx(expected, rel=1e-5)
        assert norms == pytest.approx(sizes, rel=1e-5)
