"""What is said of a profile, by its numbers alone."""

from dataclasses import replace

import pytest

from stepladder.record import Profile
from stepladder.record.profile import CAUSES
from stepladder.trace.plan_suggestions import Suggestion
from stepladder.trace.profile_verdict import Evidence, find_stragglers, judge


def profile(**causes):
    return Profile(
        plan="bf16", device="H100", steps=4, step_seconds=1.0, plain_seconds=0.8,
        causes={**dict.fromkeys(CAUSES, 0.0), **causes},
    )  # fmt: skip


def said(found, seen=None, suggestions=()):
    return [str(f) for f in judge(found, seen or Evidence(), suggestions).findings]


def test_the_largest_share_bounds_the_run_and_the_best_offer_stands_beside_it():
    found = replace(
        profile(matrix=0.7, memory_bound=0.2, optimizer=0.1),
        flops_per_second=54.0,
        peak_flops_per_second=100.0,
    )
    judged = judge(found, Evidence(), [Suggestion("fp8", 1.31), Suggestion("compile=on", 1.1)])
    assert judged.bound == "compute-bound: 70% of the step at 54% MFU; fp8 would give 1.3 ×"
    assert [str(f) for f in judged.findings] == [
        "fp8 would give 1.31 ×", "compile=on would give 1.10 ×"
    ]  # fmt: skip


def test_streaming_kernels_are_held_against_the_bandwidth():
    found = replace(profile(memory_bound=0.9, matrix=0.1), bytes_per_second=1.5e12)
    assert (
        "memory-bound: 90% of the step at 1,500 GB/s (peak unknown)"
        in judge(found, Evidence(), []).bound
    )
    known = replace(found, peak_bytes_per_second=3e12)
    assert "(50% of peak)" in judge(known, Evidence(), []).bound


def test_exposed_communication_names_its_collectives_and_the_ways_out():
    found = replace(
        profile(matrix=0.3, communication=0.7),
        collectives={"all_gather": 0.5, "reduce_scatter": 0.2, "broadcast": 0.001},
    )
    judged = judge(found, Evidence(), [])
    assert "exposed (all_gather 50%, reduce_scatter 20%)" in judged.bound
    assert said(found) == [
        "communication exposed 70%. larger micro-batch, bf16 reduce, hybrid sharding"
    ]
    assert (
        said(found, suggestions=[Suggestion("zero2", 1.2)])[0]
        == "communication exposed 70%. zero2 (1.20 ×)"
    )


def test_a_gain_that_nobody_can_forecast_is_unknown():
    judged = judge(profile(matrix=1.0), Evidence(unknown="no speed is known for CPU"), [])
    assert judged.bound.endswith("gains unknown (no speed is known for CPU)")


def test_a_wait_for_the_device_without_a_line_is_named_by_its_time():
    assert (
        "waits 200.0 ms for the device" in said(profile(matrix=1.0), Evidence(device_waits=0.2))[0]
    )
    assert said(profile(matrix=1.0), Evidence(device_waits=0.01)) == []


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ([[1.0, 1.1], [1.0, 0.9], [1.05, 1.0], [1.9, 1.8]], "rank 3 is 1.8 × slower"),
        ([[1.0, 1.0], [1.0, 2.0]], ""),  # once is chance
        ([[0.01, 0.01], [0.02, 0.02]], ""),  # nothing beside the step
        ([[0.0, 0.0], [1.0, 1.0]], "rank 1 is 50.0 × slower"),  # the other only waited
        ([[1.0, 1.0]], ""),
    ],
)
def test_a_straggler_is_slower_in_every_step(own, named):
    found = find_stragglers(own, step_seconds=2.0)
    assert [named in text for text, _ in found] == [True] * bool(named)


def test_launching_without_small_operations_is_slow_python():
    slow = Evidence(python=0.5)
    assert said(profile(host=0.6, matrix=0.39, launch=0.01), slow)[0].startswith("slow Python: 60%")
    assert said(profile(host=0.3, matrix=0.3, launch=0.4))[0].startswith("launch-bound: 70%")
    assert said(profile(host=0.1, matrix=0.7, launch=0.2)) == []


def test_a_pause_in_some_steps_alone_is_the_machines():
    assert said(profile(host=0.6, matrix=0.4), Evidence(python=0.1)) == []
