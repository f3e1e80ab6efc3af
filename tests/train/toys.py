"""Small models and batches the training tests share."""

import torch
from torch import nn

from stepladder.model import build


class Net(nn.Module):
    """Two linears and a dropout: enough to have names, gradients and randomness."""

    def __init__(self, width: int = 16, classes: int = 5, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(2 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.tanh(self.first(x))))


def net(seed: int = 0, **options) -> Net:
    torch.manual_seed(seed)
    return Net(**options)


def pairs(num: int, rows: int = 8, width: int = 16, classes: int = 5, seed: int = 1):
    """Batches of (inputs, class)."""
    draw = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(rows, width, generator=draw),
            torch.randint(0, classes, (rows,), generator=draw),
        )
        for _ in range(num)
    ]


def learn_scheduled(module, optimizer, scheduler, batches):
    """A plain torch loop in which a scheduler sets the rates, which come back."""
    rates = []
    for x, y in batches:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        scheduler.step()
    return rates


def gpt(seed: int = 0, **options):
    return build("gpt:layers=2,hidden=32,heads=2,vocab=64,sequence=16", seed=seed, **options)


def llama(seed: int = 0):
    """No biases: a key's bias has no gradient but rounding, and Adam makes a step of that."""
    return build("llama:layers=2,hidden=32,heads=2,vocab=64,sequence=16", seed=seed)


def ragged(num: int, rows: int = 12, length: int = 16, vocab: int = 64, seed: int = 2):
    """Token batches whose rows have very different numbers of valid targets, some none."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(num):
        tokens = torch.randint(0, vocab, (rows, length), generator=draw)
        targets = torch.randint(0, vocab, (rows, length), generator=draw)
        valid = torch.randint(0, length + 1, (rows, 1), generator=draw)
        valid[0] = 0
        targets[torch.arange(length).expand(rows, -1) >= valid] = -100
        made.append((tokens, targets))
    return made


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of any parameter, relative to that parameter's norm."""
    return max(
        ((a - b).norm() / b.norm()).item() for a, b in zip(one.parameters(), other.parameters())
    )


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


def share_of(batch, data_index: int, ways: int, micro: int):
    """A data rank's rows of a global batch: pass by pass, the stretch its index names."""
    mine = (torch.arange(len(batch[0])) // micro) % ways == data_index
    return tuple(tensor[mine] for tensor in batch)
