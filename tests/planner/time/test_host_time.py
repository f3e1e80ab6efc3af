"""What the host is asked to do for a pass, in launches of eager autocast."""

from dataclasses import replace

import pytest

from stepladder.hardware import Cluster
from stepladder.plan import BF16, Plan, SettledPlan
from stepladder.planner import part_launch_cost
from stepladder.planner.memory.recompute_depths import RecomputeShares
from stepladder.planner.time.collective_time import network_of
from stepladder.planner.time.device_speed import LAUNCH_SECONDS, speed_of
from stepladder.planner.time.host_time import HOST_FACTORS, host_delay_seconds, library_calls
from stepladder.planner.time.micro_batch_time import host_seconds, setting_of
from stepladder.planner.time.step_time import forecast_time
from stepladder.planner.training_software import OURS
from stepladder.workload import ElementsByType, find_facts

TINY = find_facts("gpt-tiny")
BLOCK = TINY.parts[1]
ONE = Cluster.parse("1 x H200")
WHOLE, CHEAP = RecomputeShares(0, 0, 1), RecomputeShares(0, 1, 0)


def launch_seconds(text: str, facts=TINY) -> float:
    """Seconds of the host in a step that waits for it from beginning to end."""
    found = forecast_time(facts, Plan.parse(text).settle(1), ONE)
    assert found is not None and found.host > 0.3 * found.step_seconds
    return found.step_seconds


def update_seconds() -> float:
    tensors = sum(part.tensors * part.count for part in TINY.parts)
    return LAUNCH_SECONDS * (HOST_FACTORS["step"] + HOST_FACTORS["tensor"] * tensors)


def test_matmuls_cost_the_host_more_than_the_rest_and_autocast_adds_its_casts() -> None:
    assert library_calls(BLOCK) == (7, 13)
    plain, pure = (part_launch_cost(BLOCK, autocast=autocast) for autocast in (True, False))
    cheap = HOST_FACTORS["cheap"]
    assert plain.forward == pytest.approx(HOST_FACTORS["product"] * 7 + cheap * (28 - 7))
    casts = BLOCK.launches_back.mixed - BLOCK.launches_back.eager
    assert plain.backward - pure.backward == pytest.approx(cheap * casts)


def test_passes_after_the_first_add_to_gradients() -> None:
    once, more = (part_launch_cost(BLOCK, autocast=True, added=share) for share in (0.0, 0.75))
    added = 0.75 * BLOCK.tensors * HOST_FACTORS["cheap"]
    assert more.backward - once.backward == pytest.approx(added)


def test_compiling_spares_the_host_cheap_operations_alone() -> None:
    ones = {"compiled": 1.0, "product": 1.0, "cheap": 1.0}
    eager, compiled = (
        part_launch_cost(BLOCK, autocast=True, compiled=c, factors=ones) for c in (False, True)
    )
    saved = BLOCK.launches.eager - BLOCK.launches.compiled
    saved += BLOCK.launches_back.eager - BLOCK.launches_back.compiled
    assert eager.total - compiled.total == saved > 0


def test_recomputing_costs_by_the_block_and_by_the_launch() -> None:
    plain, whole, cheap = (
        part_launch_cost(BLOCK, depths, autocast=True)
        for depths in (RecomputeShares(), WHOLE, CHEAP)
    )
    ahead = BLOCK.launches.mixed
    again = HOST_FACTORS["block again"] + HOST_FACTORS["launch again"] * ahead
    assert whole.backward - plain.backward == pytest.approx(again)
    assert whole.forward == plain.forward
    chosen = HOST_FACTORS["block chosen"] + HOST_FACTORS["launch chosen"] * ahead
    assert cheap.forward - plain.forward == pytest.approx(chosen / 2)
    assert cheap.total - plain.total == pytest.approx(chosen)
    compiled = [
        part_launch_cost(BLOCK, d, autocast=True, compiled=True) for d in (RecomputeShares(), CHEAP)
    ]
    assert compiled[0] == compiled[1], "a compiler chooses once"


def test_measured_factors_go_before_the_usual_ones() -> None:
    found = part_launch_cost(BLOCK, autocast=False, factors={"product": 0.0, "cheap": 3.0})
    cheap = BLOCK.launches.eager + BLOCK.launches_back.eager - sum(library_calls(BLOCK))
    assert found.total == pytest.approx(3.0 * cheap)


def test_the_device_is_late_by_the_most_that_asking_was_ahead() -> None:
    assert host_delay_seconds([(1.0, 4.0), (1.0, 5.0)]) == 0.0
    assert host_delay_seconds([(6.0, 4.0), (1.0, 5.0)]) == 2.0, (
        "backward starts when it is asked for"
    )
    assert host_delay_seconds([(3.0, 4.0), (9.0, 5.0)]) == 3.0
    assert host_delay_seconds([(3.0, 4.0), (5.0, 1.0), (1.0, 9.0)]) == 3.0, (
        "light blocks before heavy"
    )


def test_a_step_that_waits_takes_as_long_as_asking_for_it() -> None:
    launches = sum(part_launch_cost(p, autocast=True).total * p.count for p in TINY.parts)
    one = launches * LAUNCH_SECONDS + update_seconds()
    assert launch_seconds("bf16 micro=1") == pytest.approx(one)
    added = 0.75 * HOST_FACTORS["cheap"] * sum(p.tensors * p.count for p in TINY.parts)
    four = 4 * (launches + added) * LAUNCH_SECONDS + update_seconds()
    assert launch_seconds("bf16 micro=1 batch=4") == pytest.approx(four)


def test_the_update_is_late_only_when_the_device_has_caught_up() -> None:
    slow = find_facts("gpt2")
    found = forecast_time(slow, Plan.parse("bf16 micro=32").settle(1), ONE)
    assert found is not None and found.host < 0.02 * found.step_seconds


@pytest.mark.parametrize(("backward", "mean"), [(9.0, 2 / 4), (1.0, 2.0)])
def test_a_host_that_runs_ahead_delays_only_the_first_micro_batch(backward, mean) -> None:
    speed, network = speed_of(ONE.device, BF16), network_of(ONE)
    settled = SettledPlan(Plan.parse("bf16 micro=1 batch=4").settle(1))
    setting = setting_of(TINY, settled, speed, network, OURS)
    late, asked = host_seconds([(3.0, 1.0), (1.0, backward)], setting)
    assert (late, asked) == (mean, 4.0)


def test_weights_kept_narrow_need_no_casts() -> None:
    assert launch_seconds("bf16-pure micro=1") < 0.8 * launch_seconds("bf16 micro=1")


def test_the_host_runs_ahead_while_the_entry_keeps_the_device_busy() -> None:
    heavy = replace(TINY.entry, moved=replace(TINY.entry.moved, eager=ElementsByType(work=1e12)))
    facts = replace(TINY, parts=(heavy, *TINY.parts[1:]))
    found = forecast_time(facts, Plan.parse("bf16 micro=1").settle(1), ONE)
    assert found is not None and found.host == 0


def test_what_is_recorded_needs_no_asking() -> None:
    plain, recorded = (
        forecast_time(TINY, Plan.parse(f"bf16 compile=on{word} batch=1").settle(1), ONE)
        for word in ("", " graphs=on")
    )
    assert plain is not None and recorded is not None
    assert recorded.host == 0 < plain.host
