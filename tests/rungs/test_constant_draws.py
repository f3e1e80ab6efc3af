"""A trial's noise is one number, and no generator knows afterwards that there was a trial."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from stepladder.errors import ModelError
from stepladder.rungs.constant_draws import ConstantDraws, TrialDraws, generators_of
from stepladder.train import climb

DRAWS = {
    "bernoulli": lambda g, h: torch.bernoulli(torch.full_like(h, 0.5)),
    "gumbel": lambda g, h: functional.gumbel_softmax(h),
    "normal_": lambda g, h: torch.empty_like(h).normal_(generator=g),
    "uniform_": lambda g, h: torch.empty_like(h).uniform_(),
    "exponential_": lambda g, h: torch.empty_like(h).exponential_(),
    "poisson": lambda g, h: torch.poisson(torch.ones_like(h)),
    "own": lambda g, h: torch.randn(h.shape, generator=g),
    "hard gumbel": lambda g, h: functional.gumbel_softmax(h, hard=True),
    "normal": lambda g, h: torch.distributions.Normal(h, 1.0).rsample(),
    "randint": lambda g, h: torch.randint(2, 7, h.shape),
    "random_": lambda g, h: torch.empty_like(h).random_(3, 9),
}


def ours(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


class Noisy(nn.Module):
    """Draws by every way above, by Python, and in the order of its columns."""

    def __init__(self, *, rows: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.rows = nn.Linear(6, 10), nn.Linear(10, 3), rows
        self.own = torch.Generator().manual_seed(3)
        self.pythons, self.numpys = random.Random(4), np.random.default_rng(5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden = hidden + 0.1 * sum(draw(self.own, hidden) for draw in DRAWS.values())
        hidden = hidden[:, torch.randperm(10)] * (random.random() + np.random.rand())
        hidden = hidden * self.pythons.random() + float(self.numpys.random())
        if self.rows:
            hidden = hidden + torch.tensor(self.numpys.random(len(x))).float()[:, None]
        return self.last(hidden)


@pytest.mark.parametrize("name", DRAWS)
def test_rows_are_the_same_alone_and_among_others(name):
    rows, own = torch.linspace(0, 1, 24).view(6, 4), torch.Generator().manual_seed(1)
    with ConstantDraws():
        whole = DRAWS[name](own, rows)
        pieces = [DRAWS[name](own, rows[:2]), DRAWS[name](own, rows[2:])]
    assert torch.equal(whole, torch.cat(pieces))


def test_positions_are_possible_ones():
    weights = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]])
    with ConstantDraws():
        assert torch.randperm(5).tolist() == [0, 1, 2, 3, 4]
        assert torch.multinomial(weights, 2).tolist() == [[1, 2], [0, 2]]
        assert torch.multinomial(weights[0], 4, replacement=True).tolist() == [1, 2, 0, 1]
        assert set(torch.randint(2, 7, (9,)).tolist()) == {2}


def test_every_generator_is_put_back():
    module = Noisy()
    generators = [*generators_of([module])]
    assert len(generators) == 5
    before = [repr(one.state) for one in generators]
    draws = TrialDraws()
    with draws.put_back(torch.device("cpu"), [module]):
        with draws.constant():
            once = module(torch.ones(2, 6))
        with draws.constant():
            assert torch.equal(module(torch.ones(2, 6)), once)
    assert [repr(one.state) for one in generators] == before
    assert draws.drawn == {"Python's random", "numpy.random", "Noisy.pythons", "Noisy.numpys"}


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 6, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3


def test_a_function_is_tried_on_a_module_that_draws_by_itself():
    torch.manual_seed(0)
    run = climb(Noisy(), loss=ours, optimizer="sgd lr=0.1", plan="fp32 micro=4", device="cpu")
    assert 0 < run.step(batch()).loss < 5


def test_noise_of_other_rows_is_named_and_not_the_loss():
    run = climb(Noisy(rows=True), loss=ours, optimizer="sgd", plan="fp32 micro=4", device="cpu")
    with pytest.raises(ModelError) as refused:
        run.step(batch())
    assert str(refused.value) == (
        "loss: cannot be tried in pieces of a batch: a forward pass draws from Noisy.numpys and "
        "Noisy.pythons and Python's random and numpy.random, which gives the same rows other "
        "numbers in other pieces. Draw by torch (torch.rand), or give a loss by name, such as "
        'loss="cross_entropy". Do not cut the batch: one rank, without micro= and accumulate=.'
    )
