"""A pass without numbers shows the order of the blocks; what cannot be split is refused."""

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError
from stepladder.model import find_anatomy, meta_copy
from stepladder.rungs.pipeline.stage_parts import find_parts

from .chains import ALL


def parts_of(module, inputs, num_stages=2):
    return find_parts(meta_copy(module), find_anatomy(module), num_stages, inputs)


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"layer_drop"}))
def test_every_block_is_entered_once(name):
    make, batches, _ = ALL[name]
    inputs = batches(1)[0]
    module = make()
    record, blocks, _ = parts_of(module, inputs if isinstance(inputs, dict) else inputs[0])
    assert list(record.gates()) == blocks
    if listed := find_anatomy(module).blocks:
        assert sorted(blocks) == sorted(listed)


class Blocks(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = nn.Linear(width, width)
        self.blocks = nn.ModuleList(nn.Bilinear(width, width, width) for _ in range(3))
        self.out = nn.Linear(width, width)


class Backwards(Blocks):
    """Runs its blocks in another order than it lists them."""

    def forward(self, x):
        hidden = self.enter(x)
        for block in reversed(self.blocks):
            hidden = block(hidden, x)
        return self.out(hidden)


class Twice(Blocks):
    """Runs its first block twice in a row."""

    def forward(self, x):
        hidden = self.enter(x)
        for block in [self.blocks[0], *self.blocks]:
            hidden = block(hidden, x)
        return self.out(hidden)


@pytest.mark.parametrize(("kind", "order"), [(Backwards, [2, 1, 0]), (Twice, [0, 1, 2])])
def test_blocks_come_in_the_order_they_run(kind, order):
    _, blocks, others = parts_of(kind(), torch.zeros(2, 8))
    assert blocks == [f"blocks.{index}" for index in order] and others == ["enter", "out"]


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


class Lazy(Blocks):
    def forward(self, x):
        return self.out(self.blocks[0](self.enter(x), x))


class Again(Blocks):
    def forward(self, x):
        hidden = self.enter(x)
        for block in [*self.blocks, self.blocks[0]]:
            hidden = block(hidden, x)
        return self.out(hidden)


class Looking(Blocks):
    def forward(self, x):
        hidden = self.enter(x)
        for block in self.blocks:
            hidden = block(hidden, x) if hidden.sum() > 0 else hidden
        return self.out(hidden)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Reaching, "Reaching reads parameters of 'blocks.0' outside of it"),
        (Lazy, "block 'blocks.1' of Lazy never ran"),
        (Again, "block 'blocks.0' of Again runs again after 'blocks.2'"),
        (
            Looking,
            "Looking cannot be traced, since its code depends on numbers "
            "(DataDependentOutputException)",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(make, message):
    with pytest.raises(ModelError) as raised:
        parts_of(make(), torch.zeros(2, 8))
    wanted = f"layout.pipeline: {message}. Use pipeline=1, and shard or tensor instead."
    assert str(raised.value) == wanted
