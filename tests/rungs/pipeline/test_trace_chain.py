"""Blocks that follow each other are recognised, and what is no chain is refused by name."""

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError
from stepladder.model import find_anatomy, meta_copy
from stepladder.rungs.pipeline.trace_chain import Link, trace_chain

from .chains import CHAINS, Odd


def links(module, inputs):
    return trace_chain(meta_copy(module), find_anatomy(module), inputs)


@pytest.mark.parametrize("name", sorted(CHAINS.keys() - {"layer_drop", "shuffled"}))
def test_a_chain_is_followed_through_every_block(name):
    make, batches, _ = CHAINS[name]
    inputs = batches(1)[0]
    inputs = inputs if isinstance(inputs, dict) else inputs[0]
    assert len(links(make(), inputs)) == 4


def test_a_link_says_how_a_block_takes_and_returns_what_flows():
    assert links(Odd(), torch.zeros(1, 64))[1:] == (Link("x", 2, True),) * 3


class Blocks(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = nn.Linear(width, width)
        self.blocks = nn.ModuleList(nn.Bilinear(width, width, width) for _ in range(3))
        self.out = nn.Linear(width, width)


class Skipping(Blocks):
    """What the first block made comes back at the end, as in a U-Net."""

    def forward(self, x):
        first = hidden = self.enter(x)
        for block in self.blocks:
            hidden = block(hidden, torch.ones_like(x))
            first = hidden if first is None else first
        return self.out(hidden + first)


class Reminded(Blocks):
    """Every block is also given what entered."""

    def forward(self, x):
        hidden = entered = self.enter(x)
        for block in self.blocks:
            hidden = block(hidden, entered)
        return self.out(hidden)


class SharedTable(Blocks):
    """Every block is also given the weight of a part that is never called, as DeBERTa's are."""

    def forward(self, x):
        hidden = x
        for block in self.blocks:
            hidden = block(hidden, self.enter.weight[0] * torch.ones_like(x))
        return self.out(hidden)


class FirstOnesBias(Blocks):
    """A block hands the others what it computed from a parameter alone, as T5's first does."""

    def forward(self, x):
        hidden, bias = self.enter(x), self.blocks[0].bias * torch.ones_like(x)
        for block in self.blocks:
            hidden = block(hidden, bias)
        return self.out(hidden)


class Reaching(Blocks):
    """A layer of the first block is called again after the last, as DiT's embedding is."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(3))

    def forward(self, x):
        hidden = self.enter(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.out(hidden + self.blocks[0][0](x))


class Sized(Blocks):
    """A block is told the size that the one before it returned, as Swin's stages are."""

    class Block(nn.Linear):
        def forward(self, x, size):
            return super().forward(x) * size, size + 1

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block(8, 8) for _ in range(3))

    def forward(self, x):
        hidden, size = self.enter(x), 1
        for block in self.blocks:
            hidden, size = block(hidden, size)
        return self.out(hidden)


class Between(Blocks):
    """Something happens to what flows between blocks."""

    def forward(self, x):
        hidden = self.enter(x)
        for block in self.blocks:
            hidden = block(hidden, torch.ones_like(x)) * 0.5
        return self.out(hidden)


class Lazy(Blocks):
    def forward(self, x):
        return self.out(self.blocks[0](self.enter(x), x))


class Twice(Blocks):
    def forward(self, x):
        hidden = self.enter(x)
        for block in [self.blocks[0], *self.blocks]:
            hidden = block(hidden, x)
        return self.out(hidden)


class Dictionary(nn.Module):
    class Block(nn.Linear):
        def forward(self, x):
            return {"x": super().forward(x["x"] if isinstance(x, dict) else x)}

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block(8, 8) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x["x"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Skipping, "what follows the blocks of Skipping reads more than the last one's result"),
        (Reminded, "block 'blocks.1' of Reminded is also given, as 1, what earlier parts computed"),
        (
            SharedTable,
            "block 'blocks.1' of SharedTable is also given, as 1, what earlier parts computed",
        ),
        (
            FirstOnesBias,
            "block 'blocks.1' of FirstOnesBias is also given, as 1, what earlier parts computed",
        ),
        (Reaching, "Reaching calls 'blocks.0.0' outside the block that it belongs to"),
        (Sized, "Sized reads more of a block's result than its first tensor"),
        (Between, "block 'blocks.1' of Between is not given what 'blocks.0' returned"),
        (Lazy, "block 'blocks.1' of Lazy never ran"),
        (Twice, "block 'blocks.0' of Twice does not run after the one before it, once a pass"),
        (Dictionary, "block 'blocks.0' of Dictionary returns a dict, not a tensor first"),
    ],
)
def test_what_is_no_chain_is_refused_by_name(make, message):
    with pytest.raises(ModelError) as raised:
        links(make(), torch.zeros(2, 8))
    wanted = f"layout.pipeline: {message}. Use pipeline=1, and shard or tensor instead."
    assert str(raised.value) == wanted
