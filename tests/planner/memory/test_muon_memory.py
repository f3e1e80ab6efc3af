"""What Muon keeps, and what a step of it needs beside that."""

from dataclasses import replace

from stepladder.hardware import Cluster
from stepladder.plan import Optimizer, Plan
from stepladder.planner import forecast_moments, forecast_state
from stepladder.workload import find_facts


def test_muon_keeps_one_moment_of_hidden_matrices_and_two_of_the_rest():
    """64 x 128 products of two layers; embedding, head and norms are AdamW's."""
    facts = find_facts("gpt:layers=2,hidden=64,heads=2,vocab=100,sequence=16")
    matrices = 2 * 12 * 64 * 64
    rows = 2 * (4 * 64 + 4 * 64 + 64)
    for words, more in (("muon", 0), ("muon variant=normuon", 4 * rows)):
        plan = replace(
            Plan.parse("fp32 zero1 shard=4 micro=1 batch=4"), optimizer=Optimizer.parse(words)
        )
        (found,) = forecast_state(facts, plan.settle(4))
        others = facts.parameters - matrices
        assert found.optimizer == 4 * (matrices + 2 * others) // 4 + more


def test_muon_needs_room_for_a_round_of_whole_matrices():
    facts = find_facts("gpt:layers=2,hidden=64,heads=2,vocab=100,sequence=16")
    cluster = Cluster.parse("1 node x 1 H200")
    at_step = []
    for words in ("adamw", "muon"):
        plan = replace(Plan.parse("bf16 micro=1 batch=1"), optimizer=Optimizer.parse(words))
        at_step.append(dict(forecast_moments(facts, plan.settle(1), cluster))["step"].temporary)
    assert at_step[1] - at_step[0] == 7 * 2 * (2 * 12 * 64 * 64)
