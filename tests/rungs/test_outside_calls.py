"""A layer of a block may be called inside the block only."""

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError
from stepladder.rungs.outside_calls import OutsideCalls


class Net(nn.Module):
    def __init__(self, reaches):
        super().__init__()
        self.reaches = reaches
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.blocks[0][0](x) if self.reaches else x


@pytest.mark.parametrize("reaches", [False, True])
def test_a_call_outside_the_block_is_refused_until_the_watch_stops(reaches):
    net = Net(reaches)
    named = [(f"blocks.{index}", block) for index, block in enumerate(net.blocks)]
    calls = OutsideCalls("Net", named, "layout.shard", "Use zero1.")
    if reaches:
        with pytest.raises(ModelError) as raised:
            net(torch.ones(1, 4))
        assert str(raised.value) == (
            "layout.shard: Net calls 'blocks.0.0' outside the block that it belongs to. Use zero1."
        )
    else:
        net(torch.ones(1, 4))
    calls.stop()
    net(torch.ones(1, 4))
