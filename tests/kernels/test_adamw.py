"""One pass of Adam over 16-bit parameters and their masters, against torch's in float64."""

import pytest
import torch
from torch import nn

from stepladder.kernels import adamw_
from stepladder.kernels.backend import INTERPRETED

BETAS, EPS, LR, DECAY = (0.9, 0.999), 1e-8, 1e-2, 0.1


def steps(kind, gradient_kind, *, decoupled, divisor, number=4, size=5003):
    """Masters and parameters after some steps, ours and torch's; and both moments."""
    torch.manual_seed(0)
    value = torch.randn(size)
    parameter, master = value.to(kind), value.clone()
    moments = torch.zeros(size), torch.zeros(size)
    exact = nn.Parameter(value.double())
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    adam = make([exact], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    for step in range(1, number + 1):
        gradient = torch.randn(size).to(gradient_kind)
        corrections = torch.tensor([1 - beta**step for beta in BETAS])
        by, good = torch.tensor(divisor), torch.tensor(0.0)
        rule = (LR, *BETAS, EPS, DECAY, decoupled)
        adamw_([(parameter, master, gradient, *moments)], corrections[None], by, good, rule)
        exact.grad = gradient.double() / divisor
        adam.step()
    return parameter, master, exact.detach(), moments, adam.state[exact]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gradient_kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decoupled", [True, False])
def test_it_is_adam(kind, gradient_kind, decoupled):
    parameter, master, exact, moments, state = steps(
        kind, gradient_kind, decoupled=decoupled, divisor=4.0
    )
    assert torch.allclose(master.double(), exact, rtol=1e-5, atol=1e-6)
    assert torch.allclose(moments[0].double(), state["exp_avg"], rtol=1e-4, atol=1e-7)
    assert torch.allclose(moments[1].double(), state["exp_avg_sq"], rtol=1e-4, atol=1e-9)
    if INTERPRETED and kind == torch.bfloat16:  # the interpreter cuts digits, the device rounds
        assert ((parameter - master).abs() <= 2**-7 * master.abs()).all()
    else:
        assert torch.equal(parameter, master.to(kind)), "the parameter is its master, rounded"


def test_a_bad_step_changes_nothing():
    parameter, master, _, moments, _ = steps(
        torch.bfloat16, torch.bfloat16, decoupled=True, divisor=1.0, number=1
    )
    before = [t.clone() for t in (parameter, master, *moments)]
    one, rule = torch.ones(()), (LR, *BETAS, EPS, DECAY, True)
    gradient = torch.full_like(parameter, float("nan"))
    adamw_([(parameter, master, gradient, *moments)], torch.ones(1, 2), one, one, rule)
    for old, new in zip(before, (parameter, master, *moments)):
        assert torch.equal(old, new)


def test_a_transposed_parameter_is_updated_too():
    value = torch.randn(8, 4).T
    parameter, master = value.bfloat16(), value.clone()
    moments = torch.zeros_like(value), torch.zeros_like(value)
    rule = (LR, *BETAS, EPS, 0.0, True)
    corrections = torch.tensor([1 - beta for beta in BETAS])
    gradient = torch.ones(4, 8)
    row = (parameter, master, gradient, *moments)
    adamw_([row], corrections[None], torch.ones(()), torch.zeros(()), rule)
    assert torch.allclose(master, value - LR, atol=1e-5)


def test_many_parameters_of_several_kinds_and_shapes_move_as_each_alone():
    torch.manual_seed(0)
    kinds = [torch.bfloat16, torch.float32, torch.bfloat16, torch.float32, torch.bfloat16]
    shapes = [(4100,), (3, 5), (0,), (64, 130), (8, 4)]
    values = [torch.randn(shape) for shape in shapes]
    together = [
        (value.to(kind, copy=True), value.clone(), (value + 1).to(kind), value * 0.1, value.abs())
        for value, kind in zip(values, kinds)
    ]
    alone = [tuple(t.clone() for t in row) for row in together]
    corrections = torch.rand(len(kinds), 2) + 0.1
    two, zero, rule = torch.tensor(2.0), torch.zeros(()), (LR, *BETAS, EPS, DECAY, True)
    adamw_(together, corrections, two, zero, rule)
    for index, row in enumerate(alone):
        adamw_([row], corrections[index : index + 1], two, zero, rule)
        for one, other in zip(together[index], row):
            assert torch.equal(one, other)
    assert not torch.equal(together[3][1], values[3]), "something moved"
