"""FLOPs a second: the model's own, and the device's with recomputation; unknown stays unknown."""

import random

import pytest
import torch
from torch import nn

from stepladder.model import count_flops
from stepladder.train import as_batch, climb
from stepladder.train.flop_rate import FlopRate

from .toys import llama, ragged


def rates(plan, seconds=2.0, peak=1e12):
    run = climb(llama(), loss="cross_entropy", plan=plan, sample=ragged(1)[0])
    run.flops.peak = peak
    return run.flops.over(seconds, as_batch(ragged(1)[0], 0))


def test_recomputation_raises_the_hardwares_rate_and_not_the_models():
    plain, again, every = (rates(f"fp32 recompute={how}") for how in ("none", "blocks", "every:2"))
    counted = count_flops(llama(), ragged(1)[0][0])
    blocks = [flops for name, flops in counted.parts.items() if name.startswith("blocks.")]
    assert plain.model == plain.hardware == counted.model / 2
    assert again.model == every.model == plain.model
    assert again.hardware == pytest.approx(plain.hardware + sum(blocks) / 2)
    assert every.hardware == pytest.approx(plain.hardware + blocks[0] / 2)
    assert again.mfu == plain.model / 1e12 and again.hfu == again.hardware / 1e12


def test_selective_recomputation_runs_no_matmul_twice():
    assert rates("fp32 recompute=selective").hardware == rates("fp32").hardware


def test_an_unknown_peak_is_unknown():
    found = rates("fp32", peak=None)
    assert found.model > 0 and found.mfu is None and found.hfu is None


def test_a_module_that_cannot_be_counted_is_unknown_and_trains():
    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x) if x.sum().item() > -1e9 else x  # asks for a number

    run = climb(Moody(), loss="squared_error", plan="fp32")
    report = run.step((torch.ones(4, 2), torch.zeros(4, 2)))
    assert report.loss > 0 and report.flops_per_second is None


def test_ragged_shapes_beyond_memory_use_the_nearest():
    rate = FlopRate(nn.Linear(4, 4), None)
    for rows in range(1, 30):
        found = rate.over(1.0, as_batch(torch.ones(rows, 4), 0))
    assert found.model == count_flops(rate.module, torch.ones(16, 4)).model


class Drawing(nn.Linear):
    """Draws from Python's generator whenever it runs, for a count as well as for a step."""

    def forward(self, x):
        return super().forward(x) * random.random()


def test_counting_draws_nothing_that_a_step_would_draw():
    random.seed(0)
    FlopRate(Drawing(3, 3), None).over(1.0, as_batch(torch.zeros(2, 3), 0))
    drawn = random.random()
    random.seed(0)
    assert random.random() == drawn


class Inverse(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(super().forward(x))


def test_a_rate_is_unknown_where_an_operator_cannot_be_counted():
    batch = as_batch(torch.ones(2, 4, 4), 0)
    assert any("linalg" in name for name in count_flops(Inverse(4, 4), batch.inputs).uncounted)
    rates = FlopRate(Inverse(4, 4), peak=1e9).over(1.0, batch)
    assert rates.model is None and rates.mfu is None
    assert FlopRate(nn.Linear(4, 4), peak=1e9).over(1.0, batch).mfu is not None


def test_a_users_hook_is_given_no_stand_in():
    """FLOPs are counted on a copy without numbers, which a hook that keeps things must not see."""
    kept = []
    module = nn.Sequential(nn.Linear(4, 3))
    module[0].register_forward_hook(lambda part, given, made: kept.append(type(made)))
    run = climb(module, loss="cross_entropy", plan="fp32", device="cpu")
    report = run.step((torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])))
    assert report.loss > 0 and kept == [torch.Tensor]


def test_weights_that_torchs_own_hooks_compute_are_counted():
    torch.manual_seed(0)
    plain, normed = nn.Linear(4, 3), nn.utils.weight_norm(nn.Linear(4, 3))
    batch = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    found = []
    for module in (plain, normed):
        run = climb(nn.Sequential(module), loss="cross_entropy", plan="fp32", device="cpu")
        found.append(run.flops.over(1.0, as_batch(batch, 0)).model)
    assert found[0] and found[1] and found[1] >= found[0]
