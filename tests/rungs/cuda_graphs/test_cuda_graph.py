"""Which steps can be recorded, and which recording serves which batch."""

import pytest
import torch

from stepladder.data import IGNORED, Batch
from stepladder.plan import Plan
from stepladder.plan.settled.limits import DeviceLimits
from stepladder.plan.settled.settle import broken_rules
from stepladder.rungs.cuda_graphs.cuda_graph import signature


@pytest.mark.parametrize(
    ("text", "device", "problem"),
    [
        ("bf16", "cpu", "graphs: cpu records none; CUDA devices do. Leave graphs out."),
        (
            "bf16 ddp replicate=2",
            "cuda",
            "graphs: replay kernels of one rank alone, and ranks of replicate=2 exchange gradients "
            "from hooks that no replay calls. Leave them out.",
        ),
        (
            "bf16 offload=activations",
            "cuda",
            "graphs: keep what they read where it was, and offload=activations moves it. "
            "Leave offload or graphs out.",
        ),
    ],
)
def test_what_cannot_be_recorded_is_refused(text, device, problem):
    limits = DeviceLimits(device, kind=device)
    [found] = broken_rules(Plan.parse(f"{text} graphs=on"), device=limits)
    assert str(found) == problem


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ("zero3 shard=2", "zero3 gathers parameters to other addresses in every step"),
        ("zero1 shard=2", "ranks of shard=2 exchange gradients from hooks that no replay calls"),
        ("tensor=2", "tensor=2 has ranks wait for each other inside blocks"),
        ("context=2", "context=2 gathers keys inside attention"),
        ("experts=2", "experts=2 sends as many rows as routers choose"),
        ("pipeline=2 micro=1 accumulate=2", "pipeline=2 sends and receives between kernels"),
    ],
)
def test_several_ranks_are_refused_for_what_a_recording_lacks_there(layout, reason):
    [found] = broken_rules(Plan.parse(f"bf16 {layout} graphs=on"), device=DeviceLimits("gpu"))
    assert str(found) == f"graphs: replay kernels of one rank alone, and {reason}. Leave them out."


@pytest.mark.parametrize("text", ["bf16 compile=on", "fp32", "bf16 batch=8 micro=2"])
def test_one_rank_on_cuda_records_compiled_or_not_in_any_number_of_passes(text):
    assert not broken_rules(Plan.parse(f"{text} graphs=on"), device=DeviceLimits("gpu"))
    assert not broken_rules(Plan.parse(text), device=DeviceLimits("cpu", kind="cpu"))


def batch(rows=4, length=8, ignored=0):
    tokens = torch.zeros(rows, length, dtype=torch.long)
    targets = tokens.clone()
    targets[0, :ignored] = IGNORED
    return Batch.of((tokens, targets), position=0, size=rows)


def test_a_recording_serves_batches_of_its_shape():
    assert signature(batch(), None) == signature(batch(), None)
    assert signature(batch(), None) != signature(batch(length=9), None)
    assert signature(batch(), None) != signature(batch(rows=3), None)


def test_what_the_host_weighs_passes_by_is_part_of_a_recording():
    assert signature(batch(ignored=3), None) == signature(batch(), None), "one pass weighs 1"
    assert signature(batch(ignored=3), 2) != signature(batch(), 2)
    assert signature(batch(ignored=3), 4) == signature(batch(), 4)


def test_a_batch_without_a_target_has_a_recording_of_its_own():
    assert signature(batch(rows=1, ignored=8), None) != signature(batch(rows=1), None)
