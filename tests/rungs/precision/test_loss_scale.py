"""The scale moves exactly as torch's own, and never through the host."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stepladder.rungs import LossScale
from stepladder.rungs.precision.loss_scale import CAP, FLOOR

CPU = torch.device("cpu")
YES, NO = torch.tensor(1.0), torch.tensor(0.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 5))
def test_the_scale_moves_as_torchs_grad_scaler_step_for_step(overflows: list[bool], patience: int):
    ours = LossScale(CPU, patience=patience)
    theirs = torch.amp.GradScaler("cpu", growth_interval=patience)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    for overflow in overflows:
        gradient = torch.tensor([math.inf if overflow else 3.0, 1.0])
        theirs.scale(torch.zeros(()))
        parameter.grad = gradient.clone()
        before = parameter.detach().clone()
        theirs.step(optimizer)
        assert torch.equal(parameter, before) == overflow
        theirs.update()
        ours.update(YES if overflow else NO)
        assert ours.scale.item() == theirs.get_scale()
        assert ours.good_steps.item() == theirs._get_growth_tracker()


def test_the_scale_is_never_infinite_and_never_nothing() -> None:
    scale = LossScale(CPU, patience=1)
    for _ in range(200):
        scale.update(NO)
    assert scale.scale.item() == CAP < math.inf
    for _ in range(400):
        scale.update(YES)
    assert scale.scale.item() == FLOOR > 0


def test_a_power_of_two_goes_in_and_out_without_changing_a_bit() -> None:
    weight = torch.randn(50, requires_grad=True)
    plain = torch.autograd.grad((weight**2).sum(), weight)[0]
    scale = LossScale(CPU)
    gradient = torch.autograd.grad(scale.scaled((weight**2).sum()), weight)[0]
    assert torch.equal(gradient, plain * 2**16)
    assert torch.equal(gradient / scale.value, plain)


class NoHost(TorchDispatchMode):
    """A device whose numbers may not be looked at."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "waited for the device"
        return function(*args, **(kwargs or {}))


def test_no_step_waits_for_a_number_to_reach_the_host() -> None:
    scale = LossScale(CPU, patience=1)
    with NoHost():
        scale.update((~scale.scaled(torch.ones(3)).isfinite().all()).float())
    assert scale.scale.item() == 2**17
    with pytest.raises(AssertionError, match="waited"), NoHost():
        scale.state_dict()


def test_without_scaling_nothing_changes_and_there_is_no_value() -> None:
    scale = LossScale(CPU, enabled=False)
    loss = torch.tensor(3.0)
    assert scale.scaled(loss) is loss
    for overflow in (YES, NO):
        scale.update(overflow)
    assert (scale.value, scale.state_dict(), scale.scale.item()) == (None, {}, 1.0)


def test_a_saved_scale_goes_on_where_it_was() -> None:
    first, second = LossScale(CPU, patience=3), LossScale(CPU, patience=3)
    overflows: list[Tensor] = [NO, NO, YES, NO, NO]
    for overflow in overflows:
        first.update(overflow)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for overflow in (NO, NO, NO, YES):
        first.update(overflow)
        second.update(overflow)
        assert first.state_dict() == second.state_dict()
    assert first.value is first.scale


def test_a_run_that_did_not_scale_hands_on_to_one_that_does_and_back() -> None:
    scaling, plain = LossScale(CPU), LossScale(CPU, enabled=False)
    scaling.load_state_dict(plain.state_dict())
    assert scaling.scale.item() == 2**16
    plain.load_state_dict(scaling.state_dict())
    assert plain.scale.item() == 1.0
