"""A recomputed block that writes to buffers it reads computes the same when it is compiled."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from stepladder.train import climb
from tests.kernels.graph.compiling import without_machine_code
from tests.soak import soak_after


@pytest.fixture(params=soak_after([without_machine_code, nullcontext]), autouse=True)
def compiler(request):
    with request.param():
        yield


def add_in_place(block, x):
    block.seen.mul_(0.9).add_(x.mean(0), alpha=0.1)


def assign(block, x):
    block.seen = 0.9 * block.seen + 0.1 * x.mean(0)


def read_only(block, x):
    pass


class Block(nn.Module):
    def __init__(self, write, normed=False):
        super().__init__()
        self.write = write
        self.linear = spectral_norm(nn.Linear(8, 8)) if normed else nn.Linear(8, 8)
        self.register_buffer("seen", torch.ones(8))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.write(self, x)
        return x + torch.tanh(self.linear(x) * self.seen.clone())


def trained(module, batches, plan):
    made = copy.deepcopy(module)
    run = climb(made, loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan)
    for batch in batches:
        run.step(batch)
    return made, run


def plain_loop(module, batches):
    made = copy.deepcopy(module)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    for inputs, targets in batches:
        functional.cross_entropy(made(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return made


BLOCKS, WHOLE = "recompute=blocks compile=on", "recompute=selective compile=whole"


@pytest.mark.parametrize(
    ("plan", "write", "normed"),
    soak_after(
        [
            (BLOCKS, add_in_place, False),
            (BLOCKS, read_only, True),
            (WHOLE, assign, False),
            (BLOCKS, assign, False),
            (WHOLE, add_in_place, False),
            (WHOLE, read_only, True),
        ],
        gate=3,
    ),
)
def test_a_block_that_writes_is_recomputed_without_the_compiler(plan, write, normed):
    torch.manual_seed(0)
    module = nn.Sequential(Block(write, normed), Block(write, normed), nn.Linear(8, 3))
    batches = [(torch.randn(6, 8), torch.randint(0, 3, (6,))) for _ in range(3)]
    expected = plain_loop(module, batches).state_dict()
    made, run = trained(module, batches, f"fp32 {plan}")
    for name, value in made.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)
    said = "block '0' writes to its buffers: it is recomputed without the compiler"
    assert said in run.events


def test_a_block_that_only_reads_its_buffers_stays_compiled():
    torch.manual_seed(0)
    module = nn.Sequential(Block(read_only), Block(read_only), nn.Linear(8, 3))
    batches = [(torch.randn(6, 8), torch.randint(0, 3, (6,))) for _ in range(2)]
    expected = plain_loop(module, batches).state_dict()
    made, run = trained(module, batches, "fp32 recompute=blocks compile=on")
    for name, value in made.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)
    assert not [event for event in run.events if "without the compiler" in event]
