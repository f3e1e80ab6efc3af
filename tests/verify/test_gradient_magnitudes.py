"""What is counted is what rounding really does, and the advice follows from it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

from stepladder.model.anatomy.hidden_matrices import MatrixShape
from stepladder.plan import BF16, FP32, Optimizer
from stepladder.plan.precision import BF16_MASTER, BF16_PURE, FP16
from stepladder.verify.gradient_magnitudes import (
    TOLERATED,
    LayerGradient,
    advise,
    element_step,
    measure_gradients,
)


def layer(gradients: list[float], weights: list[float] | None = None) -> nn.Module:
    """A module whose one layer `up` has these gradients."""
    part = nn.Linear(len(gradients), 1, bias=False)
    if weights is not None:
        part.weight.data = torch.tensor([weights])
    part.weight.grad = torch.tensor([gradients])
    return nn.ModuleDict({"up": part})


def measure(gradients: list[float], weights=None, lr=None) -> LayerGradient:
    optimizer = None if lr is None else Optimizer("sgd", lr=lr)
    (row,) = measure_gradients(layer(gradients, weights), optimizer)
    return row


LARGEST = torch.finfo(torch.float32).max
TINY = 2.0**-100  # below, a product may be subnormal, which processors may take for zero
sizes = (st.floats(-1e5, 1e5, width=32) | st.floats(-(2.0**-20), 2.0**-20, width=32)).map(
    lambda size: size if abs(size) > TINY else 0.0
)


@settings(deadline=None)
@given(st.lists(sizes, min_size=1, max_size=40))
def test_shares_are_what_rounding_to_fp16_does(values: list[float]) -> None:
    row = measure(values)
    exact, rounded = torch.tensor(values), torch.tensor(values).half()
    vanished = (exact != 0) & (rounded == 0)
    kept_small = (rounded != 0) & (exact.abs() < 2.0**-14)
    assert row.underflow_fp16 == pytest.approx(vanished.float().mean().item())
    assert row.subnormal_fp16 == pytest.approx(kept_small.float().mean().item())
    assert row.zero_share == pytest.approx((exact == 0).float().mean().item())
    assert row.largest == exact.abs().max().item()
    assert row.norm == pytest.approx(exact.norm().item())


def test_the_edges_are_half_the_least_fp16_number_and_the_least_with_all_its_bits() -> None:
    row = measure([2.0**-25, 1.01 * 2.0**-25, 0.99 * 2.0**-14, 2.0**-14])
    assert (row.underflow_fp16, row.subnormal_fp16) == (0.25, 0.5)


@settings(deadline=None)
@given(st.lists(st.floats(2.0**-120, 1e4, width=32), min_size=1, max_size=40))
def test_the_scale_named_saves_them_and_half_of_it_does_not(values: list[float]) -> None:
    scale = measure(values).scale_fp16
    exact = torch.tensor(values)
    if scale is None:
        return
    assert (exact * scale).half().isfinite().all()
    assert ((exact * scale).half() == 0).float().mean() <= TOLERATED
    if scale > 1:
        assert ((exact * scale / 2).half() == 0).float().mean() > TOLERATED


@pytest.mark.parametrize(
    ("values", "scale"),
    [([1.0, 0.0], 1.0), ([2.0**-25, 1.0], 2.0), ([2.0**-39, 1.0], 2.0**15), ([1e-9, 1e4], None)],
)
def test_the_scale_is_the_least_power_of_two_or_none(values, scale: float | None) -> None:
    assert measure(values).scale_fp16 == scale


def test_a_few_stragglers_do_not_set_the_scale() -> None:
    assert measure([1e-30] + [1.0] * 999).scale_fp16 == 1.0
    assert measure([1e-30] * 2 + [1.0] * 998).scale_fp16 is None


@settings(deadline=None)
@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=40), st.integers(0, 20))
def test_a_lost_step_is_one_that_sgd_in_bf16_does_not_make(pairs, exponent: int) -> None:
    weights, gradients = torch.tensor(pairs).bfloat16().T  # so that only the step itself rounds
    lr = 2.0**-exponent
    row = measure(gradients.tolist(), weights.tolist(), lr)
    parameter = nn.Parameter(weights.clone())
    parameter.grad = gradients.clone()
    torch.optim.SGD([parameter], lr=lr).step()
    taken = lr * gradients.float() != 0
    lost = taken & (parameter == weights)
    assert row.lost_bf16 == pytest.approx(lost.sum().item() / max(1, taken.sum().item()))


def test_a_step_of_half_a_bf16_step_of_its_weight_is_lost_and_a_larger_one_is_not() -> None:
    at_half, over = 2.0**-8, 2.0**-8 * 1.01  # above 1.0 bf16 goes in steps of 2^-7
    assert measure([-at_half, -over], [1.0, 1.0], lr=1.0).lost_bf16 == 0.5
    assert measure([at_half]).lost_bf16 is None


def test_infinite_gradients_are_counted_apart() -> None:
    row = measure([math.inf, math.nan, 2.0, 0.0])
    assert (row.nonfinite_share, row.zero_share, row.largest) == (0.5, 0.25, 2.0)
    assert not math.isfinite(row.norm)
    zero = measure([0.0, 0.0])
    assert (zero.smallest_nonzero, zero.largest, zero.zero_share) == (None, 0.0, 1.0)


def test_weight_and_bias_are_one_layer_and_layers_without_gradients_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    model[2].requires_grad_(False)
    model(torch.ones(1, 2)).sum().backward()
    (row,) = measure_gradients(model)
    both = torch.cat([model[0].weight.grad.flatten(), model[0].bias.grad])
    assert row.name == "0"
    assert row.norm == pytest.approx(both.norm().item())
    assert [r.name for r in measure_gradients(model[0])] == ["Linear"]
    empty = nn.ParameterList([torch.zeros(0)])
    empty[0].grad = torch.zeros(0)
    assert measure_gradients(empty) == ()


def test_a_sliced_gradient_is_measured_whole() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        model = layer([3.0, 4.0])
        plain = measure_gradients(model, Optimizer("sgd", lr=0.1))
        gradient = model["up"].weight.grad
        model["up"].weight.grad = None
        distribute_module(model, mesh)
        model["up"].weight.grad = distribute_tensor(gradient, mesh, [Shard(1)])
        assert measure_gradients(model, Optimizer("sgd", lr=0.1)) == plain
    finally:
        dist.destroy_process_group()


def test_underflow_names_the_scale_that_keeps_it() -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList([layer([1e-9] * 12 + [0.1] * 88)])})
    assert advise(measure_gradients(model), FP16) == [
        "blocks.0.up: 12 % of gradients would underflow in fp16 at scale 1; "
        "a loss scale of 2^5 keeps them, or use bf16."
    ]
    for chosen in (FP32, BF16, BF16_PURE):
        assert advise(measure_gradients(model), chosen) == []


def test_where_no_scale_keeps_both_ends_the_way_out_is_bf16() -> None:
    assert advise([measure([1e-12] * 3 + [100.0])], FP16) == [
        "up: 75 % of gradients would underflow in fp16, and a loss scale that saves them "
        "overflows others; use bf16, or keep=fp32:up."
    ]


def test_steps_rounded_away_point_to_weights_in_float32_or_a_larger_rate() -> None:
    row = measure([-1e-3] * 4, [1.0] * 4, lr=1.0)
    assert advise([row], BF16_PURE) == [
        "up: 100 % of updates are under half a bf16 step of their weight and are rounded away; "
        "keep its weights in float32 (keep=fp32:up, or bf16 for all), "
        "or raise its rate (group=up.*:lr=x4)."
    ]
    assert advise([row], BF16) == advise([row], BF16_MASTER) == []
    assert advise([measure([1e-3] * 4, [1.0] * 4)], BF16_PURE) == []


def test_following_the_advice_silences_it() -> None:
    model, text = layer([-1e-3] * 4, [1.0] * 4), "sgd lr=1"
    (row,) = measure_gradients(model, Optimizer.parse(text))
    for keep in ("up", "other.up", "model"):
        assert bool(advise([row], BF16_PURE, keep=[keep])) is (keep != "up")
    for factor in (row.raise_bf16, row.raise_bf16 / 2):
        (again,) = measure_gradients(model, Optimizer.parse(f"{text} group=up.*:lr=x{factor:g}"))
        assert bool(advise([again], BF16_PURE)) is (factor != row.raise_bf16)
    assert advise([measure([1e-12] * 3 + [100.0])], FP16, keep=["up"]) == []
    assert advise([measure([math.nan, 1.0])], FP16, keep=["up"]), "not a matter of precision"


def test_gains_that_stay_at_one_are_reported_though_biases_learn() -> None:
    norm = nn.ModuleDict({"norm": nn.LayerNorm(4)})
    for parameter in norm.parameters():
        parameter.grad = torch.full((4,), -1.0)
    (row,) = measure_gradients(norm, Optimizer("adamw", lr=1e-4))
    (said,) = advise([row], BF16_PURE)
    assert said.startswith("norm: 50 % of updates") and "lr=x64" in said


def test_what_is_inside_a_kept_module_is_kept() -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList([layer([-1e-3], [1.0])])})
    rows = measure_gradients(model, Optimizer("sgd", lr=1.0))
    assert advise(rows, BF16_PURE, keep=["blocks.0"]) == []
    assert advise(rows, BF16_PURE, keep=["locks.0"]) != []


@settings(deadline=None)
@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=40))
def test_the_named_factor_of_the_rate_loses_less_than_half(pairs) -> None:
    weights, gradients = torch.tensor(pairs).bfloat16().T.float()
    row = measure(gradients.tolist(), weights.tolist(), lr=2.0**-9)
    factor = 2.0**-9 * row.raise_bf16
    assume((factor * gradients.double()).abs().max() < LARGEST)  # else it is an infinite step
    raised = measure(gradients.tolist(), weights.tolist(), lr=factor)
    assert raised.lost_bf16 < 0.5


def test_a_weight_of_zero_loses_steps_below_the_least_number() -> None:
    row = measure([2.0**-120], [0.0], lr=2.0**-20)
    assert (row.lost_bf16, row.raise_bf16) == (1.0, 2.0**7)
    assert measure([2.0**-120], [0.0], lr=2.0**-13).lost_bf16 == 0.0


def test_the_worst_comes_first() -> None:
    rows = [measure([1e-9, 1.0, 1.0]), measure([0.0]), measure([math.nan, 1.0]), measure([1e-9, 1])]
    assert [sentence.split(";")[0] for sentence in advise(rows, FP16)] == [
        "up: 50 % of gradients are not finite.",
        "up: all gradients are zero",
        "up: 50 % of gradients would underflow in fp16 at scale 1",
        "up: 33 % of gradients would underflow in fp16 at scale 1",
    ]


def test_gradients_of_a_scaled_loss_are_measured_as_those_of_the_loss() -> None:
    plain, scaled = layer([1e-9, 0.5]), layer([1e-9 * 2**16, 0.5 * 2**16])
    (row,) = measure_gradients(scaled, scale=2.0**16)
    assert row.norm == pytest.approx(0.5) and row.underflow_fp16 == 0.5
    assert row == measure_gradients(plain)[0]


def test_adams_first_update_has_the_size_of_its_rate() -> None:
    model = layer([1e-6, -5.0, 0.0], [1.0, 1.0, 1.0])
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    for lr, lost in ((1e-3, 1.0), (1e-2, 0.0)):
        (row,) = measure_gradients(model, Optimizer("adamw", lr=lr))
        parameter.data.fill_(1.0)
        parameter.grad = model["up"].weight.grad[0].bfloat16()
        torch.optim.AdamW([parameter], lr=lr, weight_decay=0).step()
        assert row.lost_bf16 == (parameter[:2] == 1).float().mean().item() == lost


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize(("rows", "columns"), [(96, 32), (32, 96)])
def test_a_number_of_a_matrix_goes_as_far_as_muon_takes_it(rows, columns, adjust) -> None:
    """torch's own, on a gradient all of whose directions are as large: within Newton-Schulz's."""
    weight = nn.Parameter(torch.zeros(rows, columns))
    weight.grad = nn.init.orthogonal_(torch.empty(rows, columns))
    torch.optim.Muon([weight], lr=0.1, weight_decay=0.0, adjust_lr_fn=adjust).step()
    said = element_step(Optimizer.parse(f"muon lr=0.1 adjust={adjust}"), MatrixShape(rows, columns))
    assert said == pytest.approx(weight.detach().square().mean().sqrt().item(), rel=0.35)
    assert element_step(Optimizer.parse("muon adamw_lr=1e-3"), None) == 1e-3
