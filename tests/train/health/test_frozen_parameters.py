"""What was frozen when a run began has no place in its optimizer, and is not thawed in silence."""

import pytest
import torch

import stepladder as sl
from stepladder.errors import ModelError
from tests.ranks import run as on_ranks
from tests.train.toys import net, pairs


def thawed(plan="fp32"):
    """Freeze, climb, step, thaw: what the next step says, and one after another climb."""
    module = net(1)
    module.first.requires_grad_(False)
    before = module.first.weight.clone()
    words = {"loss": "cross_entropy", "optimizer": "sgd lr=0.1", "plan": plan, "device": "cpu"}
    first = sl.climb(module, **words)
    batch = pairs(1)[0]
    first.step(batch, rows="global").read()
    module.first.requires_grad_(True)
    with pytest.raises(ModelError) as raised:
        first.step(batch, rows="global")
    if plan != "fp32":
        return str(raised.value)
    sl.climb(module, **words).step(batch).read()
    assert not torch.equal(before, module.first.weight)
    return str(raised.value)


SAID = (
    "module: first.weight, first.bias were frozen when the run began and no longer, and the run's "
    "optimizer does not have what was frozen. Call climb again with the module, or freeze it again."
)


def test_what_is_thawed_in_the_middle_of_a_run_is_refused_and_learns_in_another():
    assert thawed() == SAID


def test_every_rank_refuses_it():
    assert set(on_ranks(thawed, 2, "fp32 zero3", init=False)) == {SAID}


def test_freezing_more_is_no_fault():
    module = net(1)
    run = sl.climb(module, loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32", device="cpu")
    batch = pairs(1)[0]
    run.step(batch).read()
    module.first.requires_grad_(False)
    before = module.first.weight.clone()
    run.step(batch).read()
    assert torch.equal(before, module.first.weight)
