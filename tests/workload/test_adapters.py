"""Frozen transformers with low-rank adapters: what is trained, multiplied and kept."""

import pytest

import stepladder as sl
from stepladder.errors import PlanError
from stepladder.workload import find_facts
from stepladder.workload.adapters import with_adapters

WHOLE = find_facts("llama2-7b")
FROZEN = with_adapters(WHOLE, 8, ("q", "v"))


def trained(facts):
    return sum(p.count * (p.parameters - p.frozen_parameters) for p in facts.parts)


def test_only_adapters_learn():
    assert trained(FROZEN) == 32 * 2 * 8 * (4096 + 4096)  # what litgpt prints for r=8 on q and v
    assert FROZEN.parameters == WHOLE.parameters + trained(FROZEN)


def test_backward_multiplies_once_by_a_frozen_weight():
    block = FROZEN.blocks[0]
    assert [m.backward for m in block.matmuls if m.inner > 8 and m.columns > 8] == [1] * 7
    assert [m.backward for m in block.matmuls if 8 in (m.inner, m.columns)] == [2] * 4


@pytest.mark.parametrize("plan", ["bf16-pure micro=1", "bf16-pure zero3 micro=1"])
def test_a_frozen_base_needs_neither_gradients_nor_moments(plan):
    cluster = "8 x A100-80GB" if "zero3" in plan else "1 A100-80GB"
    whole, frozen = (sl.forecast(facts, plan, cluster) for facts in (WHOLE, FROZEN))
    assert frozen.memory.optimizer < 0.01 * whole.memory.optimizer
    assert frozen.memory.parameters == pytest.approx(whole.memory.parameters, rel=0.01)
    assert frozen.time.step_seconds < 0.85 * whole.time.step_seconds


def test_a_product_that_is_not_there_is_refused():
    with pytest.raises(PlanError, match="'w' is no product of a block"):
        with_adapters(WHOLE, 8, ("w",))
