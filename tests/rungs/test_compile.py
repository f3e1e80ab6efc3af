"""What is compiled, and what cannot be recorded."""

import pytest
import torch
from torch import nn

from stepladder.plan import Plan
from stepladder.rungs.compile import compile_module, graph_problems

CUDA = torch.device("cuda")


class Net(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(w, w) for w in widths)


def compiled(net, **how):
    """Names of the parts whose call is compiled; nothing is called, so nothing is built."""
    compile_module(net, [(str(i), block) for i, block in enumerate(net.blocks)], **how)
    return {n for n, part in net.named_modules() if part._compiled_call_impl is not None}


def test_like_blocks_are_compiled_one_by_one():
    assert compiled(Net([8, 8, 8])) == {"blocks.0", "blocks.1", "blocks.2"}


def test_small_blocks_are_compiled_whole_where_the_host_would_be_late():
    assert compiled(Net([8, 8, 8]), whole=True) == {""}


def test_large_blocks_hide_what_their_call_costs():
    with torch.device("meta"):
        net = Net([4500, 4500])
    assert compiled(net, whole=True) == {"blocks.0", "blocks.1"}


def test_blocks_that_differ_are_compiled_whole():
    assert compiled(Net([8, 16])) == {""}


def test_what_is_recorded_is_whole():
    with torch.device("meta"):
        net = Net([4500, 4500])
    assert compiled(net, graphs=True) == {""}


@pytest.mark.parametrize(
    ("text", "device", "problem"),
    [
        ("bf16", "cpu", "graphs: cpu records none; CUDA devices do. Leave graphs out."),
        ("bf16 ddp replicate=2", "cuda", "graphs: are recorded on one rank, and replicate=2 has 2"),
        ("bf16 micro=2", "cuda", "graphs: take a batch in one pass, and micro=2 may make several"),
        ("bf16 offload=activations", "cuda", "graphs: keep activations where they were recorded"),
    ],
)
def test_what_cannot_be_recorded_is_refused(text, device, problem):
    [found] = graph_problems(Plan.parse(f"{text} compile=on graphs=on"), torch.device(device))
    assert str(found).startswith(problem)


def test_a_batch_in_one_pass_may_say_so():
    assert not graph_problems(Plan.parse("bf16 compile=on graphs=on batch=8 micro=8"), CUDA)
