"""Gradients that travel smaller: what arrives, what is remembered, what it costs the network."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepladder.plan.options import Compress
from stepladder.rungs.data_parallel.gradient_compression import compress, saves
from tests.ranks import run
from tests.rungs.rank_toys import learn, odd, same


@pytest.mark.parametrize(("word", "within"), [("fp16", 2e-3), ("bf16", 2e-2), ("powersgd:9", 1e-5)])
def test_gradients_arrive_within_the_precision_they_travel_in(word, within):
    """No matrix of the module is smaller as factors of nine columns, so all travel whole."""
    expected = learn("fp32", odd, steps=2)
    for found in run(learn, 2, f"fp32 ddp compress={word}", odd, "sgd lr=0.5", 2, init=False):
        same(found, expected, rel=within)


def regression(how, steps, forget=False):
    """Learn one small thing beside loud noise that cancels over time; what was learnt of it.

    Factors of one column hold the noise alone: what is small never has its turn, unless what they
    miss adds up.
    """
    torch.manual_seed(0)
    module = nn.Linear(16, 8)
    nn.init.zeros_(module.weight), nn.init.zeros_(module.bias)
    copy = DistributedDataParallel(module, gradient_as_bucket_view=True)
    compression = compress(copy, Compress.parse(how), dist.group.WORLD)
    for step in range(steps):
        module.zero_grad()
        quiet, loud = copy(torch.eye(16)[:2] * (1 + dist.get_rank()))
        noise = 3.0 * (-1) ** step
        ((quiet[0] - 1 - dist.get_rank()).square() + (loud[1] - noise).square()).backward()
        if forget:
            compression.missed.clear()
        with torch.no_grad():
            module.weight -= 0.01 * module.weight.grad
    return module.weight[0, 0].item(), compression.sent_bytes, compression.whole_bytes


def test_error_feedback_learns_what_thin_factors_miss():
    kept, forgotten = (run(regression, 2, "powersgd:1", 100, forget) for forget in (False, True))
    assert kept[0] == kept[1], "ranks stay alike"
    learnt, sent, whole = kept[0]
    assert learnt == pytest.approx(1.0, abs=0.01)
    assert forgotten[0][0] < 0.1
    assert sent == 100 * 4 * (8 + 8 + 16) and whole == 100 * 4 * (8 * 16 + 8)


def test_half_the_bytes_travel_in_16_bits():
    for _, sent, whole in run(regression, 2, "bf16", 1):
        assert whole == 4 * (8 * 16 + 8) and sent == whole // 2


def by_factors(rank):
    """One gradient averaged by factors, against its true mean."""
    torch.manual_seed(dist.get_rank())
    module = nn.Linear(12, 12, bias=False)
    copy = DistributedDataParallel(module)
    compression = compress(copy, Compress("powersgd", rank=rank), dist.group.WORLD)
    x = torch.randn(3, 12)  # three samples a rank: the mean of two ranks has rank six
    (copy(x) * x.square()).sum().backward()
    true = torch.autograd.grad((module(x) * x.square()).sum(), module.weight)[0]
    dist.all_reduce(true)
    return (module.weight.grad - true / 2).norm().item() / true.norm().item(), compression.missed


def test_as_many_columns_as_the_gradient_has_directions_are_exact():
    """Twelve by twelve has room for factors of five columns, and needs six to be exact."""
    assert saves(torch.Size([12, 12]), 5) and not saves(torch.Size([12, 12]), 6)
    for error, _ in run(by_factors, 2, 5):
        assert 1e-4 < error < 0.3
    for error, missed in run(by_factors, 2, 6):
        assert error < 1e-6 and not missed, "factors of six are as large as the matrix"


def overflow(_):
    module = nn.Linear(16, 16, bias=False)
    copy = DistributedDataParallel(module)
    compression = compress(copy, Compress("powersgd", rank=1), dist.group.WORLD)
    seen = []
    for bad in (False, True, False):
        x = torch.ones(1, 16) * (torch.inf if bad and dist.get_rank() == 1 else 1.0)
        module.zero_grad()
        copy(x).sum().backward()
        seen.append(bool(torch.isfinite(module.weight.grad).all()))
    return seen, all(torch.isfinite(t).all() for t in compression.missed.values())


def test_an_overflow_on_one_rank_is_seen_by_all_and_not_remembered():
    assert run(overflow, 2, None) == [([True, False, True], True)] * 2


def test_vectors_travel_whole():
    assert not saves(torch.Size([64]), 1)
    assert saves(torch.Size([64, 3, 3, 3]), 4) and not saves(torch.Size([64, 3, 3, 3]), 32)
