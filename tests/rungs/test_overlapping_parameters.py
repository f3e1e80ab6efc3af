"""Two parameters in one piece of memory: kept where they stay as they are, refused elsewhere."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from stepladder.errors import ModelError
from stepladder.rungs.overlapping_parameters import overlapping
from stepladder.train import climb
from tests.ranks import run


def tied_and_normed():
    """What weight_norm makes of a tied head: its direction lies in the embedding's memory."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    net[1].weight = net[0].weight
    parametrizations.weight_norm(net[1])
    return net


def test_parameters_that_share_bytes_are_found_and_neighbours_are_not():
    assert overlapping(tied_and_normed()) == ("0.weight", "1.parametrizations.weight.original1")
    whole = torch.zeros(8)
    apart = nn.ParameterList([nn.Parameter(whole[:4]), nn.Parameter(whole[4:])])
    assert overlapping(apart) is None
    assert overlapping(nn.ParameterList([nn.Parameter(torch.zeros(0))] * 2)) is None


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=2"])
def test_a_plan_that_leaves_parameters_in_place_takes_them(plan):
    climb(tied_and_normed(), loss="cross_entropy", plan=plan, device="cpu")


def refused(plan):
    try:
        climb(tied_and_normed(), loss="cross_entropy", plan=plan, device="cpu")
    except ModelError as refusal:
        return str(refusal)


@pytest.mark.parametrize("plan", ["fp32 zero3", "fp32 zero1"])
def test_a_plan_that_cuts_them_refuses_on_all_ranks(plan):
    assert (
        run(refused, 2, plan, init=False)
        == [
            "0.weight: shares memory with '1.parametrizations.weight.original1' and is another "
            "parameter, so each update changes both; this plan gives each memory of its own. "
            "Make them one parameter (a.weight = b.weight), or clone one before climb."
        ]
        * 2
    )


def test_a_plan_that_casts_them_refuses():
    assert "shares memory" in refused("bf16-pure")
