"""Ranks that hold parts of the model take what one process rehearsed of them."""

import sys
from pathlib import Path

import pytest
import torch

import stepladder as sl
from stepladder.rehearse import rehearse, rehearse_kinds
from stepladder.rehearse.fake_world import Sayings

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "planner"))

from count_allocations import OPTIMIZER, count_step
from tests.ranks import run


def case():
    torch.manual_seed(0)
    ids = torch.randint(0, 256, (8, 32))
    return sl.build("gpt-tiny", sequence=32), (ids, ids), "cross_entropy"


def counted(plan):
    module, batch, loss = case()
    return count_step(module, plan, batch, loss)


def rehearsed(plan):
    module, batch, loss = case()
    sayings = Sayings()
    found = (
        rehearse(
            module, plan, sample=batch, loss=loss, optimizer=OPTIMIZER, ranks=2, rank=rank,
            device="cpu", sayings=sayings,
        )
        for rank in range(2)
    )  # fmt: skip
    return [one.allocated_bytes for one in found]


@pytest.mark.parametrize("plan", ["tensor=2", "pipeline=2 micro=4", "context=2"])
def test_each_rank_of_an_axis_takes_what_was_rehearsed_for_it(plan):
    expected = rehearsed(plan)
    assert run(counted, 2, plan) == [pytest.approx(one, rel=0.005) for one in expected]


def test_stages_of_a_pipeline_are_kinds_and_the_fullest_comes_first():
    module, batch, loss = case()
    found = rehearse_kinds(module, "pipeline=2 micro=2", sample=batch, loss=loss, ranks=2)
    assert sorted(one.rank for one in found) == [0, 1]
    assert found[0].reserved_bytes >= found[1].reserved_bytes


def test_what_the_source_of_a_broadcast_says_is_heard_by_ranks_played_later(monkeypatch):
    sayings = Sayings()
    for rank, own in ((0, "shapes"), (1, None)):
        monkeypatch.setattr("torch.distributed.get_rank", lambda group=None, rank=rank: rank)
        told, sayings.calls = [own], 0
        sayings.broadcast(told, group_src=0)
        assert told == ["shapes"]
