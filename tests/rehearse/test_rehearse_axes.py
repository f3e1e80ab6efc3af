"""Ranks that hold parts of the model take what one process rehearsed of them."""

import sys
from pathlib import Path

import pytest
import torch

import stepladder as sl
from stepladder.rehearse import rehearse, rehearse_kinds
from stepladder.rehearse.fake_world import Broadcasts

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "planner"))

from count_allocations import OPTIMIZER, count_step
from tests.ranks import run
from tests.soak import soak_after

MIXTURE = "llama:layers=2,hidden=64,heads=4,kv_heads=4,vocab=256,ffn=128,experts=4,active=2"


def case(model="gpt-tiny"):
    torch.manual_seed(0)
    ids = torch.randint(0, 256, (8, 32))
    return sl.build(model, sequence=32), (ids, ids), "cross_entropy"


def counted(plan, model="gpt-tiny"):
    module, batch, loss = case(model)
    return count_step(module, plan, batch, loss)


def rehearsed(plan, ranks=2, model="gpt-tiny"):
    module, batch, loss = case(model)
    broadcasts = Broadcasts()
    found = (
        rehearse(
            module, plan, sample=batch, loss=loss, optimizer=OPTIMIZER, ranks=ranks, rank=rank,
            device="cpu", broadcasts=broadcasts,
        )
        for rank in range(ranks)
    )  # fmt: skip
    return [one.allocated_bytes for one in found]


@pytest.mark.parametrize("plan", ["tensor=2", "pipeline=2 micro=4", "context=2"])
def test_each_rank_of_an_axis_takes_what_was_rehearsed_for_it(plan):
    expected = rehearsed(plan)
    assert run(counted, 2, plan) == [pytest.approx(one, rel=0.005) for one in expected]


@pytest.mark.parametrize(
    "plan",
    soak_after(
        [
            "zero3 shard=2 tensor=2",
            "pipeline=4 micro=2",
            "hsdp shard=2 replicate=2",
            "zero3 shard=2 context=2",
            "pipeline=2 context=2 micro=4",
        ]
    ),
)
def test_each_of_four_ranks_takes_what_was_rehearsed_for_it(plan):
    expected = [pytest.approx(one, rel=0.02) for one in rehearsed(plan, 4)]
    assert run(counted, 4, plan) == expected


def test_experts_are_rehearsed_as_if_every_rank_were_sent_as_many_rows():
    found = rehearsed("experts=2", model=MIXTURE)
    assert run(counted, 2, "experts=2", MIXTURE) == [pytest.approx(one, rel=0.1) for one in found]


def test_stages_of_a_pipeline_are_kinds_and_the_fullest_comes_first():
    module, batch, loss = case()
    found = rehearse_kinds(module, "pipeline=2 micro=2", sample=batch, loss=loss, ranks=2)
    assert sorted(one.rank for one in found) == [0, 1]
    assert found[0].reserved_bytes >= found[1].reserved_bytes


def test_what_the_source_of_a_broadcast_says_is_heard_by_ranks_played_later(monkeypatch):
    broadcasts = Broadcasts()
    for rank, own in ((0, "shapes"), (1, None)):
        monkeypatch.setattr("torch.distributed.get_rank", lambda group=None, rank=rank: rank)
        told, broadcasts.calls = [own], 0
        broadcasts.broadcast(told, group_src=0)
        assert told == ["shapes"]
