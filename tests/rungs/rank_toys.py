"""Runs that every test of rungs on several ranks shares: an odd module, shares of batches."""

from functools import partial

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from stepladder.train import climb

VOCAB, WIDTH = 13, 6  # divide by neither 2 nor 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 9), nn.Linear(9, WIDTH, bias=False)
        self.side = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, branch: bool) -> torch.Tensor:
        hidden = self.down(torch.tanh(self.up(self.norm(x))))
        return x + hidden + (self.side(x) if branch else 0)


class Odd(nn.Module):
    """Tied ends, a frozen table, parameters of one and of three rows, and in each block a part that
    only passes with a certain token use."""

    def __init__(self, skips: bool = True) -> None:
        super().__init__()
        self.skips = skips
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.frozen = nn.Embedding(VOCAB, WIDTH).requires_grad_(False)
        self.few = nn.Linear(WIDTH, 3)
        self.gain = nn.Parameter(torch.ones(1))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.extra = nn.Linear(3, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        branch = not self.skips or bool((tokens == 0).any())
        x = self.embed(tokens) + self.frozen(tokens)
        few = torch.tanh(self.few(x))
        for block in self.blocks:
            x = block(x, branch)
        if branch:
            x = x + self.extra(few)
        return self.head(x * self.gain + few.sum(-1, keepdim=True))


def odd(seed: int = 0, skips: bool = True) -> Odd:
    torch.manual_seed(seed)
    return Odd(skips)


def tokens(steps: int, rows: int = 12, length: int = 5):
    """Batches of 12 rows: in step 1 nobody meets token 0, in others one micro-batch does."""
    draw = torch.Generator().manual_seed(3)
    made = []
    for step in range(steps):
        inputs = torch.randint(1, VOCAB, (rows, length), generator=draw)
        if step != 1:
            inputs[(4 * step) % rows] = 0
        made.append((inputs, torch.randint(0, VOCAB, (rows, length), generator=draw)))
    return made


def share_of(batch, data_index: int, ways: int, micro: int):
    """This rank's rows of a global batch: pass by pass, the stretch its data index names."""
    rows = torch.arange(len(batch[0]))
    mine = (rows // micro) % ways == data_index
    return tuple(tensor[mine] for tensor in batch)


def start(plan: str, make, optimizer: str = "sgd lr=0.5", micro: int | None = 3, **options):
    return climb(
        make(),
        loss="cross_entropy",
        optimizer=optimizer,
        plan=f"{plan} micro={micro}" if micro else plan,
        device="cpu",
        **options,
    )


def feed(taken, batches, micro: int = 3):
    """Take the steps; losses and norms."""
    world = taken.world
    losses, norms = [], []
    for batch in batches:
        share = share_of(batch, world.data_index, world.layout.data_ranks, micro)
        report = taken.step(share, rows="rank")
        losses.append(report.loss)
        norms.append(report.grad_norm)
    return losses, norms


def whole(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter in full, whoever holds it."""
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in module.named_parameters()
    }


def learn(plan: str, make=odd, optimizer: str = "sgd lr=0.5", steps: int = 4, micro: int = 3):
    taken = start(plan, make, optimizer, micro)
    losses, norms = feed(taken, tokens(steps), micro)
    return losses, norms, whole(taken.module)


def same(found, expected, rel: float = 1e-5) -> None:
    """Losses, norms and every parameter agree."""
    for mine, theirs in zip(found[:2], expected[:2]):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=rel, atol=0)
    for name, value in expected[2].items():
        torch.testing.assert_close(found[2][name], value, rtol=10 * rel, atol=rel, msg=name)


steady = partial(odd, skips=False)
