"""Tensors without numbers go through code between parts, and what is received replaces them."""

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError
from stepladder.rungs.pipeline.remote_activation import RemoteActivation, replace_everywhere

CPU = torch.device("cpu")


def remote(*shape, dtype=torch.float32):
    return RemoteActivation(torch.empty(*shape, dtype=dtype, device="meta"), CPU)


@pytest.mark.parametrize(
    ("compute", "shape"),
    [
        (lambda x: x + torch.ones(4, 8), (4, 8)),
        (lambda x: nn.LayerNorm(8)(x), (4, 8)),
        (lambda x: nn.Linear(8, 3)(x.transpose(0, 1).contiguous().T), (4, 3)),
        (lambda x: x.view(2, 2, 8)[0], (2, 8)),
        (lambda x: torch.cat([x, torch.zeros(1, 8)]), (5, 8)),
        (lambda x: x.mul_(2), (4, 8)),
        (lambda x: nn.Dropout(0.5)(x), (4, 8)),
    ],
)
def test_operations_give_shapes(compute, shape):
    made = compute(remote(4, 8))
    assert isinstance(made, RemoteActivation)
    assert made.shape == shape and made.device == CPU and not made.requires_grad


def test_what_only_its_shape_decides_is_real():
    zeros = torch.zeros_like(remote(4, 8))
    mask = remote(4, 8).new_ones(4, dtype=torch.bool)
    assert type(zeros) is torch.Tensor and not zeros.any()
    assert type(mask) is torch.Tensor and mask.all()


def test_types_promote_as_with_numbers():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert nn.Linear(8, 8)(remote(4, 8)).dtype == torch.bfloat16
    assert (remote(4, dtype=torch.bfloat16) + torch.ones(4)).dtype == torch.float32


def test_a_real_tensor_is_not_written_to_with_numbers_that_are_not_there():
    total = torch.zeros(8)
    total.add_(remote(8))
    assert torch.equal(total, torch.zeros(8))


def test_every_variable_holds_what_was_received_instead():
    received = torch.randn(4, 8, requires_grad=True)
    flowing = remote(4, 8) + 1
    kept, seen = [flowing], flowing.view(-1)
    replace_everywhere(flowing, received.view_as(received))
    assert kept[0] is flowing and type(flowing) is torch.Tensor
    assert isinstance(seen, RemoteActivation)
    (flowing * 2).sum().backward()
    assert torch.equal(received.grad, torch.full((4, 8), 2.0))


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


def test_what_a_graph_has_saved_cannot_be_replaced():
    flowing = remote(8)
    made = Kept.apply(flowing, torch.ones(8, requires_grad=True))
    with pytest.raises(ModelError) as raised:
        replace_everywhere(flowing, torch.ones(8))
    assert made.shape == (8,)
    assert str(raised.value).startswith(
        "layout.pipeline: what flows between blocks is kept by an operation that earlier stages run"
    )
    assert str(raised.value).endswith("Move that operation into a block, or use pipeline=1.")


@pytest.mark.parametrize("ask", [lambda x: x.item(), lambda x: bool(x > 0), lambda x: x.nonzero()])
def test_numbers_are_refused(ask):
    with pytest.raises(ModelError) as raised:
        ask(remote(()))
    assert str(raised.value).startswith("layout.pipeline: '")
    assert "needs the numbers of an activation on a stage that does not have them" in str(
        raised.value
    )
