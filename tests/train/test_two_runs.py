"""Two modules that train against each other, each its own run, compute what a plain loop does."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.train import climb
from tests.ranks import run

ROWS, STEPS = 8, 4


def modules():
    torch.manual_seed(3)
    generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6))
    judge = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    return generator, judge


def draws():
    draw = torch.Generator().manual_seed(5)
    return [
        (torch.randn(ROWS, 4, generator=draw), torch.randn(ROWS, 6, generator=draw))
        for _ in range(STEPS)
    ]


def judged(logits, targets):
    return functional.binary_cross_entropy_with_logits(logits.squeeze(1), targets)


def plain():
    generator, judge = modules()
    by_generator = torch.optim.SGD(generator.parameters(), lr=0.5)
    by_judge = torch.optim.SGD(judge.parameters(), lr=0.5)
    ones, zeros = torch.ones(ROWS), torch.zeros(ROWS)
    for noise, real in draws():
        by_judge.zero_grad()
        fake = generator(noise).detach()
        judged(judge(torch.cat((real, fake))), torch.cat((ones, zeros))).backward()
        by_judge.step()
        by_generator.zero_grad()
        judged(judge(generator(noise)), ones).backward()
        by_generator.step()
    return [p.detach() for p in (*generator.parameters(), *judge.parameters())]


def climbed(plan):
    generator, judge = modules()
    how = {"plan": plan, "optimizer": "sgd lr=0.5", "device": "cpu"}
    learned = climb(generator, loss=lambda fake, real: judged(judge(fake), real), **how)
    judging = climb(judge, loss=judged, **how)
    ones, zeros = torch.ones(ROWS), torch.zeros(ROWS)
    for noise, real in draws():
        fake = generator(noise).detach()
        judging.step((torch.cat((real, fake)), torch.cat((ones, zeros))), rows="global")
        learned.step((noise, ones), rows="global")
    parameters = (*generator.parameters(), *judge.parameters())
    return [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in parameters]


def load_after_a_pass(plan, folder):
    """Losses of the first step, and of the same step after a pass without a backward and a load."""
    generator, _ = modules()
    generator[0].requires_grad_(False)
    how = {"plan": plan, "optimizer": "sgd lr=0.5", "device": "cpu"}
    learned = climb(generator, loss="squared_error", **how)
    batch = draws()[0]
    generator(batch[0])
    learned.save(folder)
    first = learned.step(batch, rows="global").loss
    second = learned.step(batch, rows="global").loss
    generator(batch[0])
    learned.load(folder)
    return first, second, learned.step(batch, rows="global").loss


@pytest.mark.parametrize("plan", ["fp32 zero2", "fp32 zero3"])
def test_a_pass_without_a_backward_leaves_no_old_parameters_behind(plan, tmp_path):
    for first, second, again in run(load_after_a_pass, 2, plan, tmp_path, init=False):
        assert first == again != second


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=4"])
def test_gradients_of_one_runs_step_do_not_reach_the_other_run(plan):
    for mine, theirs in zip(climbed(plan), plain()):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero1", "fp32 zero2", "fp32 zero3"])
def test_two_runs_on_two_ranks_compute_what_a_plain_loop_does(plan):
    expected = plain()
    for found in run(climbed, 2, plan, init=False):
        for mine, theirs in zip(found, expected):
            assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)
