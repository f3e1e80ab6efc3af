"""A rehearsed step takes the memory that a real one takes, counted by other code."""

import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.plan import Layout
from stepladder.rehearse import rehearse, rehearse_kinds
from stepladder.rehearse.rehearse_kinds import ranks_of_kinds

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "planner"))

from count_allocations import OPTIMIZER, count_run, count_step
from tests.ranks import run
from tests.rehearse.subjects import make
from tests.soak import soak_after

PLANS = ("fp32", "fp32 recompute=blocks", "bf16", "bf16-master micro=2")


@cache
def rehearsed(name, plan, **more):
    module, batch, loss = make(name)
    return rehearse(
        module, plan, sample=batch, loss=loss, optimizer=OPTIMIZER, device="cpu", **more
    )


CASES = [("decoder", plan) for plan in PLANS]
CASES += [("unet", "bf16"), ("residual", "bf16-master micro=2")]
CASES += [
    (name, plan) for name in ("unet", "residual") for plan in PLANS if (name, plan) not in CASES
]


@pytest.mark.parametrize(("name", "plan"), soak_after(CASES, gate=6))
def test_a_step_takes_what_it_was_rehearsed_to_take(name, plan):
    module, batch, loss = make(name)
    counted = count_run(module, plan, batch, loss)
    assert rehearsed(name, plan).allocated_bytes == pytest.approx(counted, rel=0.02)


def counted_on_rank(name, plan):
    module, batch, loss = make(name)
    return count_step(module, plan, batch, loss)


@pytest.mark.parametrize(
    "plan", soak_after(["ddp", "zero3 bf16 recompute=blocks", "zero1", "zero2"], gate=2)
)
def test_each_of_two_ranks_takes_what_was_rehearsed_for_it(plan):
    counted = run(counted_on_rank, 2, "decoder", plan)
    for rank in range(2):
        found = rehearsed("decoder", plan, ranks=2, rank=rank)
        assert found.allocated_bytes == pytest.approx(counted[rank], rel=0.02)
    assert not dist.is_initialized()


def test_owners_are_what_the_formulas_say_of_states():
    found = rehearsed("decoder", "fp32 micro=2").memory
    parameters = sum(p.numel() for p in make("decoder")[0].parameters())
    assert found.parameters == found.gradients == 4 * parameters  # kept between micro-batches
    assert found.optimizer == pytest.approx(8 * parameters, rel=0.01)
    assert found.activations > 0


def test_sharded_owners_are_shares():
    whole, found = (
        rehearsed("decoder", "fp32").memory,
        rehearsed("decoder", "zero3", ranks=4).memory,
    )
    assert found.parameters == pytest.approx(whole.parameters / 4, rel=0.02)
    assert found.optimizer == pytest.approx(whole.optimizer / 4, rel=0.02)


def test_the_peak_has_a_moment_a_module_and_tensors():
    found = rehearsed("decoder", "fp32")
    assert found.phase in ("forward", "backward") and found.module in dict(
        make("decoder")[0].named_modules()
    )
    assert found.peaks[found.phase] == found.allocated_bytes
    sizes = [one.num_bytes for one in found.largest]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] >= 8 * 24 * 199 * 4  # the logits
    assert any(one.module.startswith("layers.") for one in found.largest)


def test_the_module_and_its_gradients_stay_as_they_are():
    module, batch, loss = make("residual")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    drawn = torch.get_rng_state()
    rehearse(module, "bf16 ddp", sample=batch, loss=loss, ranks=2)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(before[name], now) for name, now in module.state_dict().items())
    assert all(p.grad is None and type(p) is nn.Parameter for p in module.parameters())
    module(batch[0]).sum().backward()


def test_on_a_gpu_sizes_are_those_of_the_caching_allocator():
    counted, cached = (
        rehearse(*plan_of("decoder"), device=device, **batch_of("decoder"))
        for device in ("cpu", "cuda")
    )
    assert cached.allocated_bytes > counted.allocated_bytes
    assert cached.reserved_bytes % (2 * 2**20) == 0
    assert cached.reserved_bytes >= cached.allocated_bytes


def plan_of(name):
    return make(name)[0], "fp32"


def batch_of(name):
    _, batch, loss = make(name)
    return {"sample": batch, "loss": loss}


def test_a_module_without_memory_is_rehearsed():
    with torch.device("meta"):
        module = make("decoder")[0]
    _, batch, loss = make("decoder")
    found = rehearse(module, "fp32", sample=batch, loss=loss, device="cpu", optimizer=OPTIMIZER)
    assert found.memory == rehearsed("decoder", "fp32").memory


def test_the_global_batch_of_the_plan_is_what_a_rank_sees_its_part_of():
    half = rehearsed("decoder", "ddp batch=8 micro=4", ranks=2)
    assert half.memory.activations < rehearsed("decoder", "ddp", ranks=2).memory.activations


def test_plans_that_no_fake_tensor_plays_are_bounded_or_refused():
    assert "upper bound" in rehearsed("decoder", "fp32 compile=on").notes[0]
    for plan, words in (
        ("zero3 offload=parameters", "offload=parameters cannot be rehearsed"),
        ("ddp compress=bf16", "compress: bf16 cannot be rehearsed"),
        ("ddp exact=ranks", "exact=ranks cannot be rehearsed"),
    ):
        with pytest.raises(PlanError, match=words):
            rehearsed("decoder", plan, ranks=2)


class Picks(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x[x.sum(1) > 0])


def test_a_shape_that_depends_on_numbers_is_refused_in_one_line():
    batch = torch.randn(4, 4), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ModelError, match=r"Picks: cannot be rehearsed: the shape of aten"):
        rehearse(Picks(), "fp32", sample=batch, loss="cross_entropy")


class Breaks(nn.Linear):
    def forward(self, x):
        raise ValueError("no numbers here\nat all")


def test_what_fails_in_a_module_is_told_in_one_line():
    with pytest.raises(ModelError, match=r"Breaks: cannot be rehearsed \(.*Use the forecast"):
        rehearse(Breaks(4, 2), "fp32", sample=torch.randn(2, 4), loss=lambda out, _: out.sum())


def test_recomputation_is_as_on_a_gpu_too():
    module, batch, loss = make("decoder")
    plan = "bf16 recompute=blocks"
    found = rehearse(module, plan, sample=batch, loss=loss, device="cuda")
    assert any(note.startswith("cuda: ") for note in found.notes)


def test_a_step_needs_a_batch_and_a_known_device():
    with pytest.raises(PlanError, match="sample: is None, and a step needs a batch"):
        rehearse(nn.Linear(2, 2), "fp32", sample=None)
    with pytest.raises(PlanError, match="device: 'tpu' is not rehearsed"):
        rehearse(nn.Linear(2, 2), "fp32", sample=torch.zeros(1, 2), device="tpu")


def rehearse_on_rank():
    try:
        rehearsed("decoder", "ddp", ranks=2)
    except PlanError as refused:
        return str(refused)


def test_a_rank_of_a_run_cannot_play_another_world():
    said = run(rehearse_on_rank, 2)[0]
    assert said.startswith("rehearse: a world of 2 ranks is rehearsed by one process, and this one")


def test_one_rank_of_each_kind_is_rehearsed():
    module, batch, loss = make("decoder")
    (found,) = rehearse_kinds(module, "zero3", sample=batch, loss=loss, ranks=4)
    assert found.rank == 0 and found.ranks == 4
    assert ranks_of_kinds(Layout(pipeline=4, shard=2)) == [0, 4, 6]


@pytest.mark.parametrize("name", ["rms", "layer"])
def test_recomputation_under_autocast_repeats_a_gpus_kernels(name):
    norm = nn.RMSNorm(32) if name == "rms" else nn.LayerNorm(32)
    blocks = nn.ModuleList(nn.Sequential(norm, nn.Linear(32, 32), nn.Softmax(-1)) for _ in "ab")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = blocks, nn.Linear(32, 4)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    batch = torch.zeros(8, 32), torch.zeros(8, dtype=torch.long)
    kept, again = (
        rehearse(Net(), plan, sample=batch, loss="cross_entropy").peaks["backward"]
        for plan in ("bf16", "bf16 recompute=blocks")
    )
    assert again <= kept
