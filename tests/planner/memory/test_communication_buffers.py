"""What data parallelism allocates, forecast against two gloo ranks and their ledgers of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest

from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.planner.memory.forecast_memory import forecast_memory
from stepladder.record import Memory
from stepladder.workload import Facts, find_facts
from tests.ranks import run
from tests.soak import soak_after

torch = pytest.importorskip("torch")
RANKS = 2
Batch = tuple["torch.Tensor", "torch.Tensor"]
GPTS = {  # shape, classes, tokens and rows of a rank
    # stepladder train --ranks 2 --plan "fp32 ddp"
    "first command": ("gpt:layers=4,hidden=128,heads=4,vocab=256,sequence=256", 256, 256, 8),
    "many buckets": ("gpt:layers=4,hidden=448,heads=4,vocab=256,sequence=16", 256, 16, 2),
    "wide table": ("gpt:layers=1,hidden=64,heads=2,vocab=8192,sequence=16", 8192, 16, 2),
}


def perceptron() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10))


def subject(name: str) -> tuple[Callable[[], torch.nn.Module], Batch]:
    from stepladder.model import build

    if name == "perceptron":
        return perceptron, (torch.zeros(8, 64), torch.zeros(8, dtype=torch.long))
    shape, _, length, rows = GPTS[name]
    tokens = torch.zeros(rows, length, dtype=torch.long)
    return lambda: build(shape), (tokens, tokens)


def facts_of(name: str) -> Facts:
    from stepladder.model import describe

    if name in GPTS:
        return find_facts(GPTS[name][0])
    return describe(perceptron(), sample=torch.zeros(1, 64), device="cpu")


@cache
def measured(name: str, text: str) -> Memory:
    """The first rank's memory."""
    return run(measure_on_rank, RANKS, name, text)[0]


def measure_on_rank(name: str, text: str) -> Memory:
    """The memory of the second step, when the optimizer has its state."""
    from stepladder.measure import measure_memory
    from stepladder.train import climb

    make, batch = subject(name)
    taken = climb(make(), loss="cross_entropy", plan=text, device="cpu")
    taken.step(batch, rows="rank")
    step = partial(taken.step, batch, rows="rank")
    vocab = GPTS[name][1] if name in GPTS else None
    return measure_memory(step, taken.module, taken.optimizer, torch.device("cpu"), vocab=vocab)


CASES = [
    *((name, "fp32 ddp") for name in (*GPTS, "perceptron")),
    ("wide table", "fp32 ddp micro=1"),
    ("perceptron", "fp32 zero1"),
    ("many buckets", "fp32 ddp micro=1"),
    ("many buckets", "fp32 ddp compress=bf16"),
    ("many buckets", "fp32 ddp compress=powersgd:2"),
    ("many buckets", "fp32 zero1"),
]


@pytest.mark.parametrize(("name", "text"), soak_after(CASES, gate=6))
def test_a_step_of_two_ranks_needs_what_is_forecast(name: str, text: str) -> None:
    plan = Plan.parse(text)
    rows = len(subject(name)[1][1])
    plan = replace(plan, batch=replace(plan.batch, sequences=RANKS * rows)).settle(RANKS)
    said, _ = forecast_memory(facts_of(name), plan, Cluster.parse(f"{RANKS} x CPU"))
    real = measured(name, text).peak_bytes
    assert said.peak_bytes == pytest.approx(real, rel=0.1)
    assert said.peak_bytes > 0.98 * real, "too low costs a run"


def test_ddp_reduces_gradients_where_they_are() -> None:
    once, sums = (measured("wide table", f"fp32 ddp{more}") for more in ("", " micro=1"))
    assert once.communication < 2**10
    # Half as many rows in a pass, and yet more: sums stand beside the buckets.
    assert sums.peak_bytes - once.peak_bytes > 0.8 * once.parameters
