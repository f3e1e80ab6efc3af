"""The optimizer's state on the host: the same steps, and nothing of it on the device."""

import pytest
import torch

from stepladder.rungs.memory.offload_optimizer import HostShard
from stepladder.train import climb
from tests.ranks import run
from tests.rungs.rank_toys import feed, learn, odd, same, start, tokens
from tests.train.toys import net, pairs

ADAM = "adamw lr=1e-2 wd=0.1 clip=0.5"


@pytest.mark.parametrize("optimizer", ["sgd lr=0.5", "momentum lr=0.1", ADAM])
def test_one_rank_updates_the_same_on_the_host(optimizer):
    same(learn("fp32 offload=optimizer", odd, optimizer), learn("fp32", odd, optimizer), rel=1e-6)


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero1", "fp32 zero3"])
def test_pieces_of_any_layout_are_updated_on_the_host(plan):
    expected = learn("fp32", odd, ADAM)
    for found in run(learn, 2, f"{plan} offload=optimizer", odd, ADAM, init=False):
        same(found, expected)


def test_the_optimizer_holds_the_hosts_numbers_and_the_module_its_own():
    taken = start("fp32 offload=optimizer", odd, ADAM)
    feed(taken, tokens(1))
    for shard in taken.climbed.shards:
        assert isinstance(shard, HostShard)
        assert shard.owned.data_ptr() != shard.parameter.data_ptr()
        assert torch.equal(shard.owned, shard.parameter), "brought up after the update"
        assert taken.optimizer.state[shard.owned]["exp_avg"].device.type == "cpu"
        assert shard.parameter.grad is None and shard.there.owned.grad is None


@pytest.mark.parametrize("plan", ["bf16-master", "bf16-master micro=4"])
def test_masters_on_the_host_begin_from_the_unrounded_parameters(plan):
    moved = []
    for where in ("", " offload=optimizer"):
        taken = climb(net(), loss="cross_entropy", optimizer=ADAM, plan=plan + where, device="cpu")
        masters = [taken.optimizer.state[shard.owned]["master"] for shard in taken.climbed.shards]
        assert all(torch.equal(m, p.detach()) for m, p in zip(masters, net().parameters()))
        for batch in pairs(2):
            taken.step(batch).read()
        moved.append([p.detach().clone() for p in taken.module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*moved))
