"""The tree of gradients: its order, what is missing in it, and how few sums wait."""

import torch
from torch import nn

from stepladder.rungs.exact_ranks.gradient_tree import GradientTree
from stepladder.rungs.exact_ranks.slices import add_neighbours


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(99)), nn.Parameter(torch.zeros(99))


def pairwise(values):
    """The oracle: neighbours in Python, one level after the other."""
    while len(values) > 1:
        values = [a + b for a, b in zip(values[::2], values[1::2])]
    return values[0]


def test_passes_add_up_as_neighbours_and_few_wait():
    module, draw = Two(), torch.Generator().manual_seed(0)
    tree, most = GradientTree(module), 0
    given = [torch.randn(99, generator=draw) for _ in range(8)]
    for index, gradient in enumerate(given):
        with tree.micro_batch(index == 7):
            module.first.grad = gradient.clone()
        most = max(most, sum(sums is not None for sums in tree.waiting))
    assert torch.equal(module.first.grad, pairwise(given))
    assert not torch.equal(module.first.grad, sum(given))
    assert module.second.grad is None and most == 3 and tree.waiting == []
    assert torch.equal(add_neighbours(torch.stack(given)), pairwise(given))


def test_a_pass_without_a_gradient_counts_as_zeros():
    """Ranks send zeros: minus zero must not survive where another rank would have added one."""
    module = Two()
    tree = GradientTree(module)
    for index in range(4):
        with tree.micro_batch(index == 3):
            module.first.grad = torch.full((99,), -0.0) if index == 2 else None
    assert not module.first.grad.signbit().any()


def test_a_batch_that_failed_leaves_nothing_behind():
    module = Two()
    tree = GradientTree(module)
    try:
        with tree.micro_batch(False):
            module.first.grad = torch.ones(99)
        with tree.micro_batch(True):
            raise MemoryError
    except MemoryError:
        pass
    module.first.grad = None
    with tree.micro_batch(True):
        module.first.grad = torch.ones(99)
    assert torch.equal(module.first.grad, torch.ones(99))
