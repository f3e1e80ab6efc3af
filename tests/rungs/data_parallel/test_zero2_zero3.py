"""Slices: precision, what is gathered together, what is left behind, and where slices wait."""

import gc
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.profiler import profile

from stepladder.model import build
from stepladder.rungs.data_parallel.fsdp_units import running_statistics_units, units_of
from tests.ranks import run
from tests.rungs.rank_toys import feed, learn, odd, same, share_of, start, steady, tokens
from tests.train.toys import llama, ragged


def names(module, units):
    paths = {part: name for name, part in module.named_modules()}
    return [([paths[part] for part in unit.parts], unit.full_width) for unit in units]


def blocks_of(module):
    return [(f"blocks.{index}", block) for index, block in enumerate(module.blocks)]


def test_each_block_is_a_unit_and_the_module_the_last():
    module = odd()
    found = names(module, units_of(module, blocks_of(module), narrow=True))
    assert found == [(["blocks.0"], False), (["blocks.1"], False), ([""], False)]


def test_a_block_that_shares_a_parameter_with_others_is_not_a_unit():
    module = odd()
    module.blocks[0].up.weight = module.blocks[1].up.weight
    assert names(module, units_of(module, blocks_of(module), narrow=True)) == [([""], False)]


def test_what_is_kept_in_float32_is_gathered_with_whoever_shares_it():
    module = odd()
    module.head._full_width = module.blocks[0].norm._full_width = ("cpu", torch.float32)
    found = names(module, units_of(module, blocks_of(module), narrow=True))
    assert found[:2] == [(["embed", "head"], True), (["blocks.0.norm"], True)] or found[:2] == [
        (["blocks.0.norm"], True),
        (["embed", "head"], True),
    ]
    assert names(module, units_of(module, blocks_of(module), narrow=False))[0][0] == ["blocks.0"]


def test_norms_with_running_statistics_are_gathered_in_float32():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2, affine=False))
    assert names(module, units_of(module, [], narrow=True)) == [(["1"], True), ([""], False)]


def gathered_types(plan):
    """The type in which each linear finds its weight in a forward pass."""
    taken = start(plan, odd)
    seen = {}
    for name in ("few", "head", "blocks.0.up", "blocks.0.norm"):
        part = taken.module.get_submodule(name)
        part.register_forward_pre_hook(lambda p, _, name=name: seen.update({name: p.weight.dtype}))
    feed(taken, tokens(1))
    return seen


def test_kept_modules_are_gathered_and_computed_in_float32():
    (seen, _) = run(gathered_types, 2, "bf16 zero3 keep=fp32:head,norm", init=False)
    assert seen == {
        "few": torch.bfloat16,
        "head": torch.float32,
        "blocks.0.up": torch.bfloat16,
        "blocks.0.norm": torch.float32,
    }


def test_statistics_and_fewer_bits_go_together():
    def losses(plan):
        return run(classify, 2, plan, init=False)[0]

    assert losses("bf16 zero3") == pytest.approx(losses("fp32 zero3"), rel=2e-2)


def classify(plan):
    taken = start(plan, lambda: build("resnet-tiny"), "sgd lr=0.1", micro=4)
    draw = torch.Generator().manual_seed(0)
    batch = torch.randn(8, 1, 12, 12, generator=draw), torch.randint(0, 10, (8,), generator=draw)
    return feed(taken, [batch] * 2, 4)[0]


def after_evaluation(plan):
    """A step, an evaluation, a step: what lies between them, and what the second step sees."""
    taken = start(plan, odd)
    first = feed(taken, tokens(1))
    mine = share_of(tokens(2)[1], taken.world.data_index, taken.world.layout.data_ranks, 3)
    evaluated = taken.evaluate([mine], rows="rank")
    sliced = all(isinstance(p, DTensor) for p in taken.module.parameters())
    return first[0] + [evaluated] + feed(taken, tokens(2)[1:])[0], sliced


@pytest.mark.parametrize("plan", ["fp32 zero2", "fp32 zero3"])
def test_an_evaluation_leaves_slices_and_changes_nothing(plan):
    expected, _ = after_evaluation("fp32")
    assert expected[1] == pytest.approx(expected[2]), "the next step's loss, before it is taken"
    for found, sliced in run(after_evaluation, 2, plan, init=False):
        assert found == pytest.approx(expected, rel=1e-5)
        assert sliced


def gathers(plan):
    """How often parameters were gathered in a batch of two passes, and how many units there are."""
    taken = start(plan, llama, micro=3)
    batch = share_of(ragged(1)[0], taken.world.data_index, 2, 3)
    taken.step(batch, rows="rank").read()
    with profile() as seen:
        taken.step(batch, rows="rank").read()
    names = [event.key for event in seen.key_averages() for _ in range(event.count)]
    gathered = [name for name in names if name.split(" ")[0] == "FSDP::all_gather"]
    units = [part for part in taken.module.modules() if isinstance(part, FSDPModule)]
    return len(gathered), len(units)


def test_zero_2_gathers_once_a_batch_and_zero_3_before_each_use():
    (once, units), _ = run(gathers, 2, "fp32 zero2", init=False)
    (each, _), _ = run(gathers, 2, "fp32 zero3", init=False)
    assert once == units
    # Two passes forward, and backward again all but the last block and what lies around blocks.
    assert each == 2 * (units + units - 2)


def on_host(plan):
    taken = start(plan, steady)
    losses = feed(taken, tokens(3))
    devices = {shard.owned.device.type for shard in taken.climbed.shards}
    return losses[0], devices


def test_parameters_may_wait_on_the_host():
    expected = on_host("fp32")[0]
    for losses, _ in run(on_host, 2, "fp32 zero3 offload=parameters", init=False):
        assert losses == pytest.approx(expected, rel=1e-5)


def test_parameters_may_wait_on_the_host_of_one_rank():
    try:
        assert on_host("fp32 zero3 shard=1 offload=parameters")[0] == pytest.approx(
            on_host("fp32")[0], rel=1e-5
        )
    finally:
        dist.destroy_process_group()


def test_the_branch_of_one_rank_does_not_hang_the_other_in_fewer_passes():
    """One pass a batch: nothing another pass did can stand in for a skipped parameter."""
    expected = learn("fp32", odd, "adamw lr=1e-2", 3, 6)
    for found in run(learn, 2, "fp32 zero3", odd, "adamw lr=1e-2", 3, 6, init=False):
        same(found, expected)


def is_freed(plan):
    """Whether a module goes with its run, and with it the groups and their threads."""
    taken = start(plan, odd)
    feed(taken, tokens(2))
    module = ref(taken.module)
    del taken
    gc.collect()
    return module() is None


@pytest.mark.parametrize("plan", ["fp32 zero2", "fp32 zero3"])
def test_a_module_whose_run_is_gone_is_freed(plan):
    assert run(is_freed, 2, plan, init=False) == [True, True]


def test_norms_are_gathered_alone_where_torch_does_not_complete_units():
    norms = nn.Sequential(nn.BatchNorm2d(2), nn.BatchNorm2d(2))
    assert names(norms, running_statistics_units(norms, together=True)) == [(["0", "1"], True)]
    alone = names(norms, running_statistics_units(norms, together=False))
    assert alone == [(["0"], True), (["1"], True)]
