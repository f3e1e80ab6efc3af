"""What is compiled: like blocks one by one, or the whole."""

import pytest
import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.kernels.graph.compile import compile_parts, compile_scope
from stepladder.plan import Plan, SettledPlan


class Net(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(w, w) for w in widths)


def compiled(net, words="", device="cpu", how="on"):
    """Names of the parts whose call is compiled; nothing is called, so nothing is built."""
    settled = SettledPlan(Plan.parse(f"fp32 compile={how} {words}"), device)
    scope, _ = compile_scope(net.blocks, settled)
    compile_parts(net.blocks if scope == "blocks" else [net], options=None)
    return {n for n, part in net.named_modules() if part._compiled_call_impl is not None}


def test_like_blocks_are_compiled_one_by_one():
    assert compiled(Net([8, 8, 8])) == {"blocks.0", "blocks.1", "blocks.2"}


def test_small_blocks_are_compiled_whole_where_the_host_would_be_late():
    assert compiled(Net([8, 8, 8]), device="cuda") == {""}


def test_large_blocks_hide_what_their_call_costs():
    with torch.device("meta"):
        net = Net([4500, 4500])
    assert compiled(net, device="cuda") == {"blocks.0", "blocks.1"}


def test_blocks_that_differ_are_compiled_whole():
    assert compiled(Net([8, 16])) == {""}


def test_a_pipeline_stage_is_compiled_by_block():
    assert compiled(Net([8, 16]), "pipeline=2") == {"blocks.0", "blocks.1"}


def test_what_is_compiled_in_one_piece_can_be_written():
    assert compiled(Net([8, 8]), how="whole") == {""}
    assert compiled(Net([8, 8]), device="cuda", how="blocks") == {"blocks.0", "blocks.1"}


def test_blocks_that_are_not_there_are_refused():
    with pytest.raises(PlanError, match="^compile: blocks were asked for, and the module has no"):
        compiled(Net([]), how="blocks")
