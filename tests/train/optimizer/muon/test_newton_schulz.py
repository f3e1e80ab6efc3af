"""Newton-Schulz against the same polynomial of the singular values, in float64."""

import pytest
import torch

from stepladder.train.optimizer.muon.newton_schulz import divide_by_row_means, orthogonalise
from stepladder.verify.plain.plain_muon import orthogonal


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def apart(mine, theirs):
    return ((mine.double() - theirs.double()).norm() / theirs.double().norm()).item()


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (1, 7)])
@pytest.mark.parametrize("steps", [1, 5])
def test_singular_values_go_through_the_polynomial_and_vectors_stay(shape, steps):
    matrices = torch.stack([drawn(*shape, seed=seed) * 10**seed for seed in range(3)])
    found = orthogonalise(matrices, steps)
    for mine, given in zip(found, matrices):
        assert apart(mine, orthogonal(given, steps)) < 1e-5


def test_five_steps_leave_no_direction_small():
    values = torch.linalg.svdvals(orthogonalise(drawn(1, 16, 24), 5)[0])
    assert values.min() > 0.6 and values.max() < 1.3


def test_a_stack_gives_what_each_matrix_gives_alone():
    matrices = torch.stack([drawn(9, 6, seed=seed) for seed in range(4)])
    alone = torch.cat([orthogonalise(one[None], 5) for one in matrices])
    assert apart(orthogonalise(matrices, 5), alone) < 1e-5


def test_zeros_stay_zeros():
    assert not orthogonalise(torch.zeros(2, 3, 4), 5).any()


def test_torchs_own_in_bfloat16_is_as_near():
    weight, gradient = drawn(24, 16), drawn(24, 16, seed=1)
    theirs = torch.nn.Parameter(weight.clone())
    theirs.grad = gradient.clone()
    torch.optim.Muon([theirs], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False).step()
    mine = weight - (24 / 16) ** 0.5 * orthogonalise(gradient[None].bfloat16(), 5)[0].float()
    assert apart(mine - weight, theirs.detach() - weight) < 2e-2


def test_rows_are_divided_by_their_mean_size_so_far():
    """Algorithm 1 of the NorMuon paper, in float64."""
    matrices, beta, eps = drawn(2, 4, 6), 0.9, 1e-8
    means = drawn(2, 4, 1, seed=1).square()
    wanted = beta * means.double() + (1 - beta) * matrices.double().square().mean(2, keepdim=True)
    even = matrices.double() / (wanted.sqrt() + eps)
    sizes = torch.stack([one.norm() for one in even])[:, None, None]
    unit, now = divide_by_row_means(matrices, means, beta, eps, unit=True)
    same, _ = divide_by_row_means(matrices, means, beta, eps, unit=False)
    assert apart(now, wanted) < 1e-6 and apart(unit, even / sizes * 24**0.5) < 1e-6
    before = torch.stack([one.norm() for one in matrices.double()])[:, None, None]
    assert apart(same, even / sizes * before) < 1e-6
