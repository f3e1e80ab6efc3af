from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from stepladder.labs.checkpointing import checkpoint, run

torch.set_num_threads(1)
theirs = partial(torch_checkpoint, use_reentrant=False)


@pytest.mark.parametrize("num_segments", [1, 3, 6, 7, 36])
def test_the_claim_losses_and_gradients_are_the_same_to_the_bit(num_segments):
    plain, mine = run(0), run(num_segments)
    assert len(plain.gradients) == 72
    assert mine.same(plain) and mine.same(run(num_segments, theirs))


@pytest.mark.parametrize("num_segments", [1, 6, 36])
def test_as_much_is_held_between_forward_and_backward_as_torch_holds(num_segments):
    assert run(num_segments).held == run(num_segments, theirs).held == num_segments + 1


def test_the_claim_the_square_root_keeps_least():
    kept = {segments: run(segments).kept for segments in (0, 3, 6, 12)}
    assert kept[0] == 39 and kept[6] == 12
    assert min(kept, key=kept.get) == 6


def test_the_claim_every_layer_runs_twice():
    assert (run(0).calls, run(6).calls) == (36, 72)


def test_random_numbers_after_a_checkpoint_are_those_without_one():
    def draws(keep):
        torch.manual_seed(0)
        x = torch.ones(8, requires_grad=True)
        loss = keep(nn.Dropout(0.5), x).sum()
        between = torch.rand(3)
        loss.backward()
        return torch.stack([between, torch.rand(3)])

    assert torch.equal(draws(checkpoint), draws(lambda function, x: function(x)))


def test_several_inputs_each_receive_their_gradient_and_constants_none():
    a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    constant = torch.randn(4)
    checkpoint(lambda x, y, z: (x * y * z).sum(), a, b, constant).backward()
    assert torch.equal(a.grad, b * constant) and torch.equal(b.grad, a * constant)
    assert constant.grad is None


def test_inputs_that_cannot_have_a_gradient_pass_through():
    table, rows = torch.randn(4, 2, requires_grad=True), torch.tensor([1, 1, 3])
    checkpoint(lambda t, r: t[r].sum(), table, rows).backward()
    assert table.grad[:, 0].tolist() == [0, 2, 0, 1]


def test_autocast_is_the_same_the_second_time():
    seen = []

    def product(x, weight):
        result = x @ weight
        seen.append(result.dtype)
        return result.float().sum()

    x, weight = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = checkpoint(product, x, weight)
    loss.backward()
    assert seen == [torch.bfloat16, torch.bfloat16]
