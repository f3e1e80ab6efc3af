"""Frozen matrices in 16 bits under autocast: the same numbers in half the bytes, on every rung."""

import copy

import pytest
import torch
from torch import nn

import stepladder as sl
from stepladder.model import describe
from stepladder.model.frozen_linears import frozen_linears, narrow_frozen_linears
from stepladder.plan import Plan
from stepladder.planner import forecast_state
from stepladder.rungs.parameter_shards import local
from tests.ranks import run as on_ranks

WIDTH, RANK, BLOCKS, VOCAB, ROWS = 32, 4, 3, 64, 8


class Adapted(nn.Module):
    """A frozen linear and a pair of narrow ones beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.base.requires_grad_(False)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.norm.requires_grad_(False)

    def forward(self, given):
        return given + torch.tanh(self.norm(self.base(given) + self.up(self.down(given))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList([Adapted() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.embedding.requires_grad_(False)
        self.head.requires_grad_(False)

    def forward(self, tokens):
        stream = self.embedding(tokens)
        for block in self.blocks:
            stream = block(stream)
        return self.head(stream)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_outside_autocast_a_frozen_part_is_read_in_the_type_of_what_is_given(frozen):
    linear = nn.Linear(WIDTH, VOCAB)
    getattr(linear, frozen).requires_grad_(False)
    given, plain = torch.randn(ROWS, WIDTH), copy.deepcopy(linear)
    narrow_frozen_linears(linear, torch.bfloat16)
    assert getattr(linear, frozen).dtype == torch.bfloat16
    torch.testing.assert_close(linear(given), plain(given), rtol=2e-2, atol=2e-2)


def net():
    torch.manual_seed(0)
    made = Net()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def batch():
    tokens = torch.randint(0, VOCAB, (ROWS, 9), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def oracle_losses(steps, lr):
    """Autocast over whole float32 weights, as anybody would write it."""
    module, (inputs, targets) = net(), batch()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=lr)
    losses = []
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(module(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def climbed(plan, optimizer="sgd lr=0.5"):
    return sl.climb(net(), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu")


def test_the_losses_are_those_of_whole_matrices_to_the_last_bit():
    run = climbed("bf16")
    assert run.module.blocks[0].base.weight.dtype == torch.bfloat16
    losses = [run.step(batch(), rows="global").loss for _ in range(4)]
    assert losses == oracle_losses(4, 0.5) and losses[-1] < losses[0]


BASE = WIDTH * WIDTH + WIDTH
NARROW = BLOCKS * BASE + VOCAB * WIDTH  # read by linears only: frozen matrices and the head
PAIR = 2 * WIDTH * RANK
TRAINED = BLOCKS * PAIR
WHOLE = VOCAB * WIDTH + BLOCKS * 2 * WIDTH  # frozen, and read otherwise: embedding, norms


def held_bytes(plan):
    """What a rank holds after a step: parameters, gradients, optimizer state."""
    run = climbed(plan, "adamw lr=1e-3")
    kept = {}

    def keep(*_):
        kept["gradients"] = sum(
            local(p.grad).nbytes for p in run.module.parameters() if p.grad is not None
        )

    run.optimizer.register_step_pre_hook(keep)
    run.step(batch(), rows="global").read()
    states = run.optimizer.state.values()
    tensors = [local(value) for state in states for key, value in state.items() if key != "step"]
    parameters = sum(local(p).nbytes for p in run.module.parameters())
    return parameters, kept["gradients"], sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize(
    ("plan", "ranks", "sliced"),
    [("bf16", 1, 1), ("bf16 ddp", 2, 1), ("bf16 zero1", 2, 1), ("bf16 zero3 shard=2", 2, 2)],
)
def test_frozen_parameters_cost_no_gradient_no_state_and_no_float32_copy(plan, ranks, sliced):
    per_rank = [held_bytes(plan)] if ranks == 1 else on_ranks(held_bytes, ranks, plan, init=False)
    state_ranks = ranks if "zero" in plan else 1
    for parameters, gradients, _ in per_rank:
        assert parameters == (2 * NARROW + 4 * (WHOLE + TRAINED)) / sliced
        assert gradients == 4 * TRAINED / sliced
    assert sum(state for *_, state in per_rank) == 8 * TRAINED * ranks / state_ranks


@pytest.mark.parametrize(("plan", "ranks"), [("bf16", 1), ("bf16 zero3 shard=2", 2)])
def test_the_forecast_counts_the_same_bytes(plan, ranks):
    facts = describe(net(), sample=batch())
    (state,) = forecast_state(facts, Plan.parse(f"{plan} micro=1").settle(ranks))
    assert state.parameters == (2 * NARROW + 4 * (WHOLE + TRAINED)) / ranks
    assert state.gradients == 4 * TRAINED / ranks
    (full,) = forecast_state(facts, Plan.parse("fp32 micro=1").settle(1))
    assert full.parameters == 4 * (NARROW + WHOLE + TRAINED)


def sharded_losses(plan):
    run = climbed(plan)
    return [run.step(batch(), rows="global").loss for _ in range(3)]


@pytest.mark.parametrize("plan", ["bf16 ddp", "bf16 zero3 shard=2"])
def test_ranks_learn_as_one_device_does(plan):
    wanted = oracle_losses(3, 0.5)
    for losses in on_ranks(sharded_losses, 2, plan, init=False):
        assert losses == pytest.approx(wanted, rel=2e-3)


def test_outside_autocast_the_module_computes_in_the_type_it_is_given():
    module, (inputs, _) = net(), batch()
    rounded = copy.deepcopy(module)
    with torch.no_grad():
        for name, parameter in rounded.named_parameters():
            if name in frozen_linears(module):
                parameter.copy_(parameter.bfloat16())
    saved = narrow_frozen_linears(module, torch.bfloat16)
    assert saved == 2 * NARROW
    assert torch.equal(copy.deepcopy(module)(inputs), rounded(inputs))


def test_a_matrix_that_something_else_reads_stays_whole():
    tied = net()
    tied.head.weight = tied.embedding.weight
    assert not [name for name in frozen_linears(tied) if "head" in name or "embedding" in name]
    own = net()
    own.blocks[0].base.forward = lambda given: given
    assert {name.partition(".base")[0] for name in frozen_linears(own)} == {
        "blocks.1", "blocks.2", "head.weight"
    }  # fmt: skip


def test_a_module_that_is_kept_in_float32_keeps_its_frozen_matrices_so():
    run = climbed("bf16 keep=fp32:blocks.0.base")
    kinds = [block.base.weight.dtype for block in run.module.blocks]
    assert kinds == [torch.float32, torch.bfloat16, torch.bfloat16]
