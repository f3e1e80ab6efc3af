"""What is compiled: like blocks one by one, or the whole."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from stepladder.errors import PlanError
from stepladder.kernels.graph.compile import compile_parts, compile_scope
from stepladder.plan import Plan, SettledPlan
from tests.soak import soak_after

from .compiling import without_machine_code


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


@pytest.mark.parametrize("compiler", soak_after([without_machine_code, nullcontext]))
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU()),
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    ],
)
def test_modules_of_torchs_own_classes_are_compiled_once_for_all_alike(make, compiler):
    parts, x = [make() for _ in range(3)], torch.randn(2, 4, 8, requires_grad=True)
    expected = parts[2](parts[1](parts[0](x)))
    counters.clear()
    with compiler():
        compile_parts(parts, options=None)
    torch.testing.assert_close(parts[2](parts[1](parts[0](x))), expected)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_copy_of_a_compiled_module_runs_its_own_weights():
    part, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(2, 8)
    compile_parts([part], options=None)
    other = copy.deepcopy(part)
    nn.init.zeros_(other[0].weight)
    assert not other(x).equal(part(x))
