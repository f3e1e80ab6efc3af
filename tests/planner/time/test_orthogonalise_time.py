"""Muon's products and exchange in a forecast."""

from dataclasses import replace

import pytest

from stepladder.hardware import Cluster
from stepladder.plan import Optimizer, Plan
from stepladder.planner import forecast
from stepladder.planner.time.orthogonalise_time import OrthogonaliseRates, newton_schulz_flops
from stepladder.workload import find_facts

LLAMA = find_facts("llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,tied=1")


def optimizer_seconds(plan, words="muon", cluster="1 node x 8 H200"):
    whole = replace(Plan.parse(f"bf16 {plan} micro=2 batch=256"), optimizer=Optimizer.parse(words))
    return forecast(LLAMA, whole, Cluster.parse(cluster)).time.optimizer


def test_flops_are_those_of_the_three_products():
    """Each is 2·m·n·k: the smaller side squared, its square, and the product with the matrix."""
    assert newton_schulz_flops(3, 7, 1) == 2 * 3 * 3 * 7 + 2 * 3 * 3 * 3 + 2 * 3 * 3 * 7
    assert newton_schulz_flops(7, 3, 5) == 5 * newton_schulz_flops(3, 7, 1)


def test_seconds_are_products_bytes_and_latency():
    assert OrthogonaliseRates(10, 4, 0.5).seconds(20, 8, 3) == pytest.approx(2 + 2 + 1.5)


def test_steps_cost_in_proportion_and_ranks_share_them():
    alone = "1 node x 1 H200"
    one, two = (optimizer_seconds("ddp", f"muon ns_steps={n}", alone) for n in (5, 10))
    products = two - one
    assert products > 0.5 * one
    for plan in ("zero1 shard=8", "zero3 shard=8", "replicate=8"):
        more = optimizer_seconds(plan, "muon ns_steps=10") - optimizer_seconds(plan)
        assert more < 0.3 * products, plan
    assert optimizer_seconds("zero3 shard=8", "adamw") < optimizer_seconds("zero3 shard=8")
