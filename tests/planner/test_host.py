"""What the host is asked to do for a pass, in units of a cheap operation."""

from dataclasses import replace

import pytest

from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.planner import pass_launches
from stepladder.planner.depths import Depths
from stepladder.planner.host import again_launches
from stepladder.planner.time import forecast_time
from stepladder.workload import find_facts

TINY = find_facts("gpt-tiny")
BLOCK = TINY.parts[1]
ONE = Cluster.parse("1 x H200")


def asked(text: str, facts=TINY) -> float:
    """Seconds of a step that waits for the host from beginning to end, without its optimizer."""
    found = forecast_time(facts, Plan.parse(text).settle(1), ONE)
    assert found is not None and found.host > 0.5 * found.step_seconds
    return found.step_seconds - found.optimizer


def test_a_product_costs_nine_cheap_operations_and_autocast_six_more() -> None:
    kernels, products = BLOCK.kernels[0], len(BLOCK.matrices)
    assert pass_launches(BLOCK, autocast=False) == kernels + 8 * products
    assert pass_launches(BLOCK, autocast=True) == kernels + 14 * products


def test_compiling_spares_the_host_cheap_operations_alone() -> None:
    saved = BLOCK.kernels[0] - BLOCK.kernels[1]
    eager, compiled = (pass_launches(BLOCK, autocast=True, compiled=c) for c in (False, True))
    assert eager - compiled == saved > 0


def test_choosing_what_to_keep_costs_the_host_most_unless_compiled() -> None:
    whole, cheap = Depths(0, 0, 1), Depths(0, 1, 0)
    assert again_launches(Depths(), compiled=False) == 0
    assert again_launches(whole, compiled=False) == again_launches(whole, compiled=True) == 0.8
    assert again_launches(cheap, compiled=False) == 2.7
    assert again_launches(cheap, compiled=True) == 0


def test_a_step_that_waits_takes_as_long_as_asking_for_it() -> None:
    launches = sum(pass_launches(p, autocast=True) * p.count for p in TINY.parts)
    assert asked("bf16 micro=1") == pytest.approx(launches * 6e-6)
    assert asked("bf16 micro=1 batch=4") == pytest.approx(4 * asked("bf16 micro=1"))


def test_recomputation_asks_again() -> None:
    plain = asked("bf16 micro=1")
    blocks = sum(pass_launches(p, autocast=True) * p.count for p in TINY.parts[1:-1]) * 6e-6
    assert asked("bf16 micro=1 recompute=blocks") == pytest.approx(plain + 0.8 * blocks)
    assert asked("bf16 micro=1 recompute=selective") == pytest.approx(plain + 2.7 * blocks)


def test_weights_kept_narrow_need_no_casts() -> None:
    assert asked("bf16-pure micro=1") < 0.8 * asked("bf16 micro=1")


def test_the_host_runs_ahead_while_the_exit_keeps_the_device_busy() -> None:
    heavy = replace(TINY.exit, moved=replace(TINY.exit.moved, eager=1e12))
    facts = replace(TINY, parts=(*TINY.parts[:-1], heavy))
    found = forecast_time(facts, Plan.parse("bf16 micro=1").settle(1), ONE)
    assert found is not None and found.host == 0
