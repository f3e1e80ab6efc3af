import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from stepladder.rungs import BlockCost, measure_blocks
from stepladder.trace import find_retained_graphs, live_graphs

torch.set_num_threads(1)
ROWS, WIDTH = 8, 16
ROW_BYTES = ROWS * WIDTH * 4


class Block(nn.Module):
    """Saves its input twice (product, residual product), one product, one activation."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def measure_saved_bytes(block):
    x = torch.randn(ROWS, WIDTH)
    (cost,) = measure_blocks([("", block)], lambda: block(x))
    return cost.kept_bytes


def test_a_block_keeps_its_input_and_what_its_products_read():
    # the input for `up`; tanh's result, which both tanh and `down` read
    assert measure_saved_bytes(Block()) == ROW_BYTES * (1 + 4)


def test_each_depth_has_its_own_bytes():
    model = nn.Sequential(Block(), Block())
    x = torch.randn(ROWS, WIDTH)
    blocks = [(str(i), block) for i, block in enumerate(model)]
    # cheap: the input, the results of up (four wide) and down (one wide)
    expected = BlockCost(ROW_BYTES * 5, ROW_BYTES * 6, ROW_BYTES)
    assert measure_blocks(blocks, lambda: model(x)) == (expected, expected)
    assert expected.worth("cheap") == "kept" and expected.worth("whole") == "whole"


def test_the_same_is_measured_without_memory_on_fake_tensors():
    with FakeTensorMode():
        model = nn.Sequential(Block(), Block())
        x = torch.randn(ROWS, WIDTH)
        costs = measure_blocks([("a", model[0]), ("b", model[1])], lambda: model(x))
    assert costs == (BlockCost(ROW_BYTES * 5, ROW_BYTES * 6, ROW_BYTES),) * 2


def test_a_tensor_that_two_blocks_keep_counts_once():
    block, x = Block(), torch.randn(ROWS, WIDTH)
    other = Block()
    first, second = measure_blocks([("a", block), ("b", other)], lambda: (block(x), other(x)))
    assert first.kept_bytes - second.kept_bytes == ROW_BYTES


def test_the_blocks_are_left_as_they_were():
    block = Block()
    measure_saved_bytes(block)
    assert not block._forward_hooks and not block._forward_pre_hooks


def test_no_graph_is_left_behind():
    known = live_graphs()
    measure_saved_bytes(Block())
    assert find_retained_graphs(ignore=known) is None
