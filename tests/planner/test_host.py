"""What the host is asked to do for a pass, in launches of eager autocast."""

from dataclasses import replace

import pytest

from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.planner import part_asking
from stepladder.planner.depths import Depths
from stepladder.planner.host import FACTORS, Asking, late_seconds
from stepladder.planner.time import forecast_time
from stepladder.workload import Kept, find_facts

TINY = find_facts("gpt-tiny")
BLOCK = TINY.parts[1]
ONE = Cluster.parse("1 x H200")
WHOLE, CHEAP = Depths(0, 0, 1), Depths(0, 1, 0)


def asked(text: str, facts=TINY) -> float:
    """Seconds of a step that waits for the host from beginning to end, without its optimizer."""
    found = forecast_time(facts, Plan.parse(text).settle(1), ONE)
    assert found is not None and found.host > 0.3 * found.step_seconds
    return found.step_seconds - found.optimizer


def test_autocast_adds_its_casts_and_passes_after_the_first_their_additions() -> None:
    plain = part_asking(BLOCK, autocast=True)
    assert plain == Asking(BLOCK.launches.mixed, BLOCK.launches_back.mixed)
    more = part_asking(BLOCK, autocast=True, added=0.75)
    assert more.total - plain.total == pytest.approx(0.75 * BLOCK.tensors)


def test_compiling_spares_the_host_cheap_operations_alone() -> None:
    eager, compiled = (part_asking(BLOCK, autocast=True, compiled=c) for c in (False, True))
    saved = BLOCK.launches.eager - BLOCK.launches.compiled
    saved += BLOCK.launches_back.eager - BLOCK.launches_back.compiled
    assert eager.total - compiled.total == saved > 0


def test_choosing_what_to_keep_costs_the_host_most_unless_compiled() -> None:
    plain, whole, cheap = (
        part_asking(BLOCK, depths, autocast=True).total for depths in (Depths(), WHOLE, CHEAP)
    )
    ahead = BLOCK.launches.mixed
    assert whole - plain == pytest.approx(FACTORS["blocks"] * ahead)
    assert cheap - plain == pytest.approx(FACTORS["selective"] * ahead)
    compiled = [part_asking(BLOCK, d, autocast=True, compiled=True) for d in (Depths(), CHEAP)]
    assert compiled[0] == compiled[1]


def test_measured_factors_go_before_the_usual_ones() -> None:
    found = part_asking(BLOCK, autocast=False, factors={"pure": 3.0})
    assert found.total == 3.0 * (BLOCK.launches.eager + BLOCK.launches_back.eager)


def test_a_pass_is_late_by_whichever_makes_it_longest() -> None:
    assert late_seconds(Asking(1.0, 1.0), 4.0, 5.0) == 0.0
    assert late_seconds(Asking(6.0, 1.0), 4.0, 5.0) == 2.0, "backward starts when it is asked for"
    assert late_seconds(Asking(3.0, 9.0), 4.0, 5.0) == 3.0


def test_a_step_that_waits_takes_as_long_as_asking_for_it() -> None:
    launches = sum(part_asking(p, autocast=True).total * p.count for p in TINY.parts)
    assert asked("bf16 micro=1") == pytest.approx(launches * 6e-6)
    added = 0.75 * sum(p.tensors * p.count for p in TINY.parts) * 6e-6
    assert asked("bf16 micro=1 batch=4") == pytest.approx(4 * (asked("bf16 micro=1") + added))


def test_recomputation_asks_again() -> None:
    plain, ahead = asked("bf16 micro=1"), BLOCK.launches.mixed * BLOCK.count * 6e-6
    whole = asked("bf16 micro=1 recompute=blocks")
    assert whole == pytest.approx(plain + FACTORS["blocks"] * ahead)
    cheap = asked("bf16 micro=1 recompute=selective")
    assert cheap == pytest.approx(plain + FACTORS["selective"] * ahead)


def test_weights_kept_narrow_need_no_casts() -> None:
    assert asked("bf16-pure micro=1") < 0.8 * asked("bf16 micro=1")


def test_the_host_runs_ahead_while_the_entry_keeps_the_device_busy() -> None:
    heavy = replace(TINY.entry, moved=replace(TINY.entry.moved, eager=Kept(work=1e12)))
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
