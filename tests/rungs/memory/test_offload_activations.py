import pytest
import torch
from torch import nn

from stepladder.plan import Recompute
from stepladder.rungs.memory.offload_activations import Offload, offload_activations
from stepladder.rungs.memory.recompute import recompute
from stepladder.trace import find_retained_graphs, live_graphs

torch.set_num_threads(1)
CPU = torch.device("cpu")
ROWS, WIDTH, HEADS = 6, 32, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, x):
        rows, length, _ = x.shape
        # three strided views of one storage
        q, k, v = (
            part.view(rows, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH)))


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(3)))


def train(model, offload=None, autocast=False):
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    seen = []
    for _ in range(3):
        x = torch.randn(ROWS, 8, WIDTH)
        with offload or torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, autocast):
            loss = model(x).float().square().mean()
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        seen.append(loss.detach())
    return [*seen, *(p.detach() for p in model.parameters())]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("again", ["none", "blocks"])
def test_losses_and_updates_are_the_same_to_the_bit(again, autocast):
    plain, away = build(), build()
    recompute([(str(i), block) for i, block in enumerate(away)], Recompute.parse(again))
    offload = offload_activations(CPU, away.parameters(), smallest_bytes=1)
    pairs = zip(train(plain, autocast=autocast), train(away, offload, autocast), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert offload.sent_bytes > 0


def test_a_storage_travels_once_however_many_views_of_it_are_saved():
    x = torch.randn(4, 8, requires_grad=True) * 1
    offload = Offload(CPU, [], smallest_bytes=1)
    with offload:
        y = (x[:, :4] * x[:, 4:]).sum() + (x.t() ** 2).sum()
    assert offload.sent_bytes == 4 * 8 * 4
    y.backward()


def test_a_storage_that_was_written_to_travels_again():
    base = torch.ones(4)
    leaf = torch.ones(4, requires_grad=True)
    with Offload(CPU, [], smallest_bytes=1):
        first = leaf * base
        with torch.no_grad():
            base.mul_(3)
        second = leaf * base
    (first + second).sum().backward()
    assert torch.equal(leaf.grad, torch.full((4,), 4.0))


@pytest.mark.parametrize("autocast", [False, True])
def test_parameters_and_their_casts_stay(autocast):
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    offload = Offload(CPU, model.parameters(), smallest_bytes=1)
    x = torch.randn(ROWS, WIDTH, requires_grad=True) * 1  # so that backward reads the weight too
    with offload, torch.autocast("cpu", torch.bfloat16, autocast):
        model(x)
    assert offload.sent_bytes == ROWS * WIDTH * (2 if autocast else 4)  # the input alone


def test_frozen_parameters_stay():
    model = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
    offload = Offload(CPU, model.parameters(), smallest_bytes=1)
    with offload:
        model(torch.randn(ROWS, WIDTH, requires_grad=True) * 1)
    assert offload.sent_bytes == 0  # a frozen weight's gradient needs no input either


def test_small_tensors_stay():
    offload = Offload(CPU, [], smallest_bytes=1025)
    x = torch.randn(256, requires_grad=True) * 1
    with offload:
        x.square()
    assert offload.sent_bytes == 0
    offload.smallest_bytes = 1024
    with offload:
        x.square()
    assert offload.sent_bytes == 1024


def test_what_was_sent_is_let_go_by_backward():
    x = torch.randn(64, requires_grad=True) * 1
    offload = Offload(CPU, [], smallest_bytes=1)
    with offload:
        y = x.square().sum()
    assert len(offload._host_copies) == 1
    y.backward()
    assert len(offload._host_copies) == 0


def test_backward_may_run_twice_when_the_graph_is_kept():
    x = torch.randn(64, requires_grad=True)
    with Offload(CPU, [], smallest_bytes=1):
        y = (x * 1).square().sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    assert torch.equal(x.grad, 2 * once)


@pytest.mark.parametrize("smallest_bytes", [1, 2**20])
def test_a_graph_that_never_goes_backward_is_let_go(smallest_bytes):
    known = live_graphs()
    x = torch.randn(64, requires_grad=True)
    with Offload(CPU, [], smallest_bytes=smallest_bytes):
        torch.tanh(x)  # keeps its own result
    assert find_retained_graphs(ignore=known) is None


def test_second_derivatives_are_the_same():
    def second(offload):
        x = torch.linspace(0, 1, 8, requires_grad=True)
        with offload:
            y = (torch.tanh(x) ** 3).sum()
            (first,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    plain = second(torch.enable_grad())
    assert torch.equal(plain, second(Offload(CPU, [], smallest_bytes=1)))
    assert torch.equal(plain, second(Offload(CPU, [], smallest_bytes=2**20)))
