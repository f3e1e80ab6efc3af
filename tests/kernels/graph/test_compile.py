"""What is compiled: like blocks one by one, or the whole."""

import torch
from torch import nn

from stepladder.kernels.graph.compile import compile_by_block, compile_module


class Net(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(w, w) for w in widths)


def compiled(net, **how):
    """Names of the parts whose call is compiled; nothing is called, so nothing is built."""
    by_block, _ = compile_by_block(net.blocks, **{"one_gpu": False, "stage": False, **how})
    compile_module(net, net.blocks, by_block=by_block, options=None)
    return {n for n, part in net.named_modules() if part._compiled_call_impl is not None}


def test_like_blocks_are_compiled_one_by_one():
    assert compiled(Net([8, 8, 8])) == {"blocks.0", "blocks.1", "blocks.2"}


def test_small_blocks_are_compiled_whole_where_the_host_would_be_late():
    assert compiled(Net([8, 8, 8]), one_gpu=True) == {""}


def test_large_blocks_hide_what_their_call_costs():
    with torch.device("meta"):
        net = Net([4500, 4500])
    assert compiled(net, one_gpu=True) == {"blocks.0", "blocks.1"}


def test_blocks_that_differ_are_compiled_whole():
    assert compiled(Net([8, 16])) == {""}


def test_a_pipeline_stage_is_compiled_by_block():
    assert compiled(Net([8, 16]), stage=True) == {"blocks.0", "blocks.1"}
