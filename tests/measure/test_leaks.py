import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepladder.measure import measure_fragmentation
from stepladder.measure.leaks import (
    GIB,
    MIB,
    Fragmentation,
    Leak,
    LeakWatch,
    LengthWatch,
    fragmentation_of,
)

BASE = 100 * MIB


def watch(readings) -> list[Leak]:
    leaks = LeakWatch()
    found = (leaks.add(step, reading) for step, reading in enumerate(readings))
    return [leak for leak in found if leak is not None]


@given(st.integers(1, 100), st.integers(1, 50), st.integers(0, 2**32))
def test_a_sawtooth_raises_no_alarm(period, height, seed):
    noise = random.Random(seed)
    teeth = [BASE + height * MIB * (step % period) + noise.randrange(MIB) for step in range(600)]
    assert watch(teeth) == []


@given(st.integers(10, 1000), st.integers(1, 100), st.integers(0, 2**32))
def test_steady_growth_is_found_through_noise_and_teeth(kib_a_step, period, seed):
    noise = random.Random(seed)
    rise = kib_a_step * 1024
    # teeth no higher than what leaks over one of them
    readings = [
        BASE + step * rise + (step % period) * rise // 4 + noise.randrange(rise)
        for step in range(1200)
    ]
    found = watch(readings)
    assert found and found[-1].bytes_per_step == pytest.approx(rise, rel=0.3)


@given(st.lists(st.integers(0, GIB), min_size=1, max_size=400))
def test_readings_that_return_to_where_they_were_are_no_leak(readings):
    leaks = LeakWatch()
    for step, reading in enumerate([*readings, *[min(readings)] * 300]):
        leaks.add(step, reading)
    assert leaks.leak() is None


def test_a_level_run_and_growth_in_the_warmup_raise_no_alarm():
    assert watch([BASE] * 500) == []
    assert watch([BASE * step for step in range(10)] + [10 * BASE] * 500) == []


def test_growth_too_small_to_matter_is_left_alone():
    assert watch([BASE + step for step in range(1000)]) == []


def test_a_leak_says_how_fast_and_how_long_it_can_go_on():
    leak = watch([BASE + step * MIB for step in range(200)])[-1]
    assert leak.bytes_per_step == MIB
    assert leak.steps_left(leak.floor_bytes + 50 * MIB) == 50
    assert leak.steps_left(0) == 0
    assert str(leak) == (
        f"memory: the floor rose by {leak.grown_bytes / MIB:.1f} MiB from step 10 to "
        f"{leak.last_step} and never fell (1.000 MiB a step). Something is kept from step to step."
    )


def test_the_watch_remembers_a_handful_of_numbers_however_long_the_run():
    leaks = LeakWatch()
    for step in range(20_000):
        leaks.add(step, BASE)
    assert len(leaks.windows) <= 16 and len(leaks.windows) * leaks.length >= 20_000 - 10


def test_growth_that_came_with_longer_sequences_is_told_from_other_growth():
    lengths = LengthWatch()
    lengths.add(0, 100, 10 * MIB)
    lengths.add(1, 200, 18 * MIB)  # longer: 8 of the growth
    lengths.add(2, 150, 20 * MIB)  # not longer: 2
    lengths.add(3, 200, 5 * MIB)
    longest = lengths.longest
    assert (longest.length, longest.step, longest.share) == (200, 1, 0.8)
    assert str(longest) == (
        "longest sequence: 200 at step 1; 80% of memory's growth came with a new longest sequence."
    )


def test_without_growth_there_is_no_share():
    lengths = LengthWatch()
    lengths.add(4, 64, MIB)
    longest = lengths.longest
    assert longest.share is None and "64 at step 4; memory has not grown" in str(longest)


def segment(*blocks):
    made = [{"size": size, "state": state} for size, state in blocks]
    return {"total_size": sum(size for size, _ in blocks), "blocks": made, "device": 0}


def test_idle_memory_in_small_pieces_is_called_scattered():
    used, idle = "active_allocated", "inactive"
    segments = [segment((GIB, used), (GIB // 4, idle))] * 4
    scattered = fragmentation_of(segments)
    assert scattered == Fragmentation(5 * GIB, 4 * GIB, GIB // 4)
    assert str(scattered) == (
        "1.00 GiB of 5.00 reserved are idle and scattered: the largest piece is 0.25 GiB. "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets pieces join."
    )
    whole = fragmentation_of([segment((GIB, used), (GIB, idle))])
    assert str(whole) == "1.00 GiB of 2.00 reserved are idle; the largest piece is 1.00 GiB."


def test_a_cpu_has_no_idle_memory_to_report():
    assert measure_fragmentation(torch.device("cpu")) is None
