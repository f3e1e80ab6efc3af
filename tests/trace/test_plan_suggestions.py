"""Offers are the planner's own forecasts, of the plan and of one change to it."""

import pytest

from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.planner import forecast
from stepladder.trace.plan_suggestions import SuggestionContext
from stepladder.workload import find_facts

FACTS = find_facts("llama3-8b", 4096)
CLUSTER = Cluster.parse("2 nodes x 8 H100-80GB, 400 Gb/s")
PLAN = Plan.parse("bf16 zero3 shard=16 micro=1 batch=64 recompute=blocks")


def test_an_offer_is_the_ratio_of_two_forecasts():
    node, words = Cluster.parse("8 x H100-80GB"), "zero3 shard=8 micro=1 batch=64 compile=on"
    bf16, fp8 = (Plan.parse(f"{precision} {words}") for precision in ("bf16", "fp8"))
    suggestions = {
        suggestion.words: suggestion.gain
        for suggestion in SuggestionContext(FACTS, node).suggestions(bf16)
    }
    now, then = (forecast(FACTS, plan, node).time.step_seconds for plan in (bf16, fp8))
    assert suggestions["fp8"] == pytest.approx(now / then)
    assert suggestions["fp8"] > 1.1
    assert any(words.startswith("micro=2") for words in suggestions)
    assert list(suggestions.values()) == sorted(suggestions.values(), reverse=True)


def test_what_does_not_fit_or_is_not_legal_is_not_offered():
    a100 = Cluster.parse("2 nodes x 8 A100-80GB, 400 Gb/s")
    words = [suggestion.words for suggestion in SuggestionContext(FACTS, a100).suggestions(PLAN)]
    assert "fp8" not in words, "an A100 has no such units"
    assert "recompute=none" not in [o.words for o in SuggestionContext(FACTS, CLUSTER).suggestions(
        Plan.parse("bf16 zero3 shard=16 micro=8 batch=128 recompute=blocks"))]  # fmt: skip


def test_slices_across_nodes_are_offered_inside_them():
    slow = Cluster.parse("8 nodes x 8 H100-80GB, 25 Gb/s")
    plan = Plan.parse("bf16 zero3 shard=64 micro=1 batch=64 recompute=blocks")
    words = [suggestion.words for suggestion in SuggestionContext(FACTS, slow).suggestions(plan)]
    assert "hybrid sharding (shard=8 replicate=8)" in words


def test_where_nothing_is_known_nothing_is_offered():
    assert SuggestionContext(unknown="why").suggestions(PLAN) == []
    cpu = Cluster.parse("1 x CPU")
    assert (
        SuggestionContext(find_facts("gpt-tiny"), cpu).suggestions(Plan.parse("fp32 batch=4")) == []
    )


def test_a_gain_within_the_forecasts_own_error_is_not_offered():
    fp8 = Plan.parse("fp8 zero3 shard=16 micro=1 batch=64 recompute=blocks")
    now, then = (forecast(FACTS, plan, CLUSTER).time.step_seconds for plan in (PLAN, fp8))
    assert 1 < now / then < 1.03, "communication bounds it"
    assert "fp8" not in [
        suggestion.words for suggestion in SuggestionContext(FACTS, CLUSTER).suggestions(PLAN)
    ]
