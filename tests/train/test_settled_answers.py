"""A run and its forecast answer the same questions alike."""

import pytest
import torch
from torch import nn

from stepladder.hardware import Cluster
from stepladder.kernels import Chosen, choose
from stepladder.loss import make_loss
from stepladder.model import build, describe, find_anatomy
from stepladder.plan import Plan, SettledPlan
from stepladder.planner.legality import settle_unchecked
from stepladder.planner.memory.byte_sizes import compile_scope, sizes_of
from stepladder.rungs.precision.precision import device_limits
from stepladder.train.build_run import settle_here
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
    run, forecast = (
        settle_here(plan, "cpu", place),
        settle_unchecked(plan.settle(1), Cluster.parse("1 CPU")),
    )
    assert run.on_gpu is forecast.on_gpu is False
    facts = describe(SMALL)
    sizes = sizes_of(facts, forecast)
    assert (run.sliced, run.state_ranks, run.gradient_ranks) == (
        sizes.wrapped, sizes.shard, sizes.gradient_ranks,
    )  # fmt: skip
    assert run.micro_batch in (None, sizes.samples)
    assert run.fuses_head(facts.vocab) is sizes.fused_head
    assert run.records_graphs is forecast.records_graphs


def chosen_for(shape: str, settled: SettledPlan) -> Chosen:
    """What the run's own choice changes of a module without values."""
    module = build(shape, device="meta")
    anatomy, loss = find_anatomy(module), make_loss("cross_entropy", module)
    return choose(module, anatomy, [b for _, b in anatomy.blocks_of(module)], loss, settled)


@pytest.mark.parametrize("shape", [SMALL, WIDE, "gpt2", "resnet50"])
@pytest.mark.parametrize("device", ["1 x H200", "8 x H200", "1 CPU"])
def test_the_planner_and_the_compiler_agree_on_what_is_compiled_in_one_piece(
    shape, device, monkeypatch
):
    cluster = Cluster.parse(device)
    plan = Plan.parse("bf16 ddp compile=on micro=1").settle(cluster.num_devices)
    settled = settle_unchecked(plan, cluster)
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda part, **_: compiled.append(part))
    chosen_for(shape, settled).compile()
    run = "module" if len(compiled) == 1 else "blocks"
    assert compile_scope(describe(shape), settled) == run


@pytest.mark.parametrize("words", ["kernels=on", "kernels=off"])
@pytest.mark.parametrize("shape", [SMALL, WIDE, "resnet50"])
@pytest.mark.parametrize("device", ["1 x H200", "1 CPU"])
def test_the_planner_and_the_run_agree_on_fused_heads_and_image_layouts(shape, device, words):
    settled = settle_unchecked(Plan.parse(f"bf16 {words} micro=1").settle(1), Cluster.parse(device))
    sizes, chosen = sizes_of(describe(shape), settled), chosen_for(shape, settled)
    assert sizes.fused_head is (chosen.head is not None)
    assert (sizes.channels_last and shape == "resnet50") is chosen.channels_last


def test_a_device_that_is_here_is_known_by_what_it_multiplies():
    here = device_limits(torch.device("cpu"))
    assert not here.on_gpu and here.computes == {"fp32", "fp16", "bf16"}
