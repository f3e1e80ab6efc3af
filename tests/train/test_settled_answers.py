"""A run and its forecast answer the same questions alike."""

import pytest
import torch
from torch import nn

from stepladder.hardware import Cluster
from stepladder.kernels.fused_head import fuse_head
from stepladder.kernels.graph import compile as compiling
from stepladder.loss import make_loss
from stepladder.model import build, describe, find_anatomy
from stepladder.plan import Plan, SettledPlan
from stepladder.planner.legality import answers
from stepladder.planner.memory.byte_sizes import compile_scope, sizes_of
from stepladder.rungs.precision.precision import device_limits
from stepladder.train.start import settle_here
from stepladder.world import Place

SMALL = "llama:layers=2,hidden=64,heads=2,vocab=256,sequence=8"
WIDE = "llama:layers=2,hidden=64,heads=2,vocab=32768,sequence=8"
PLANS = [
    "fp32",
    "fp32 micro=2 batch=8",
    "bf16 zero1 micro=1",
    "bf16 zero2 micro=1",
    "bf16 zero3 micro=1 accumulate=2",
    "bf16 zero3 micro=1 offload=parameters",
    "bf16 ddp micro=1 compile=on",
    "bf16 micro=1 kernels=on",
    "bf16 micro=1 kernels=on compile=on",
    "bf16-master micro=1 accumulate=2",
    "fp32 compile=on recompute=selective",
    "bf16 offload=optimizer",
]


@pytest.mark.parametrize("text", PLANS)
def test_the_run_reads_the_answers_that_are_forecast(text):
    place, plan = Place.from_environment(), Plan.parse(text)
    run, forecast = settle_here(plan, "cpu", place), answers(plan.settle(1), Cluster.parse("1 CPU"))
    assert run.on_gpu is forecast.on_gpu is False
    facts = describe(SMALL)
    sizes = sizes_of(facts, forecast)
    assert (run.sliced, run.state_ways, run.gradient_ways) == (
        sizes.wrapped, sizes.shard, sizes.gradient_ways,
    )  # fmt: skip
    assert run.micro_batch in (None, sizes.samples)
    assert run.fuses_head(facts.vocab) is sizes.fused_head
    assert run.records_graphs is forecast.records_graphs


@pytest.mark.parametrize("shape", [SMALL, WIDE, "gpt2", "resnet50"])
@pytest.mark.parametrize("device", ["1 x H200", "8 x H200", "1 CPU"])
def test_the_planner_and_the_compiler_agree_on_what_is_compiled_in_one_piece(
    shape, device, monkeypatch
):
    cluster = Cluster.parse(device)
    plan = Plan.parse("bf16 ddp compile=on micro=1").settle(cluster.num_devices)
    settled = answers(plan, cluster)
    module = build(shape, device="meta")
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda part, **_: compiled.append(part))
    compiling.compile_module(
        module,
        find_anatomy(module).blocks_of(module),
        whole=settled.one_rank and settled.on_gpu,
    )
    run = "module" if compiled == [module] else "blocks"
    assert compile_scope(describe(shape), settled) == run


@pytest.mark.parametrize("shape", [SMALL, WIDE])
def test_the_planner_and_the_rung_agree_on_the_fused_head(shape):
    module = build(shape)
    rung = fuse_head(module, find_anatomy(module), make_loss("cross_entropy", module))
    settled = SettledPlan(Plan.parse("bf16 kernels=on micro=1").settle(1))
    assert sizes_of(describe(shape), settled).fused_head is (rung is not None)


def test_a_device_that_is_here_is_known_by_what_it_multiplies():
    here = device_limits(torch.device("cpu"))
    assert not here.on_gpu and here.computes == {"fp32", "fp16", "bf16"}
