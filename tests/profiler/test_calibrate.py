import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepladder.hardware import Cluster, find
from stepladder.plan import BF16, FP32, Plan
from stepladder.planner import forecast, pass_launches
from stepladder.planner.speed import speed_of
from stepladder.profiler import calibrate
from stepladder.profiler.calibrate import attempt
from stepladder.profiler.efficiency import STEP_MODEL, fit
from stepladder.profiler.probes import PRODUCTS, WORKS, Probe, probes_of
from stepladder.record import Timing
from stepladder.workload import find_facts

CPU = torch.device("cpu")
STREAM = Timing("stream", "bf16", (10**9,), 6e9 / 2e12)  # 2 TB/s


def products(compute: str, rate: float, edges: float, size: int) -> list[Timing]:
    """Timings of a device that does exactly what the planner's formula says."""
    found = []
    for rows, inner, columns in PRODUCTS["cuda"]:
        elements = rows * inner + rows * columns + inner * columns
        seconds = 6 * rows * inner * columns / rate + 3 * edges * size * elements / 2e12
        found.append(Timing("product", compute, (rows, inner, columns), seconds))
    return found


@given(st.floats(1e12, 1e15), st.floats(0.5, 5.0))
def test_the_fit_finds_the_rate_and_the_edges_that_made_the_timings(rate, edges):
    found = fit("H200", [STREAM, *products("bf16", rate, edges, 2)])
    assert found.matrix_flops_per_second["bf16"] == pytest.approx(rate, rel=1e-6)
    assert found.matrix_edges["bf16"] == pytest.approx(edges, rel=1e-4)


def test_the_planner_forecasts_the_very_products_that_were_timed():
    timings = products("bf16", 6e14, 2.0, 2)
    speed = speed_of(find("H200"), BF16, fit("H200", [STREAM, *timings]))
    for timing in timings:
        rows, inner, columns = timing.shape
        elements = rows * inner + rows * columns + inner * columns
        said = 3 * speed.product(2 * rows * inner * columns, elements)
        assert said == pytest.approx(timing.seconds, rel=1e-4)


def test_shapes_that_show_no_edges_have_none():
    flat = [Timing("product", "fp32", s, 6e-12 * s[0] * s[1] * s[2]) for s in PRODUCTS["cpu"]]
    found = fit("CPU", [STREAM, *flat])
    assert found.matrix_flops_per_second["fp32"] == pytest.approx(1e12)
    assert found.matrix_edges["fp32"] == pytest.approx(0.0, abs=1e-6)


def test_one_shape_alone_gives_its_own_rate():
    found = fit("CPU", [Timing("product", "fp32", (100, 100, 100), 6e6 / 1e9)])
    assert found.matrix_flops_per_second == {"fp32": pytest.approx(1e9)}


def test_attention_is_rated_forward_and_backward_together():
    heads, length, width = 16, 4096, 128
    flops = 2 * heads * width * length**2
    moved = 4 * heads * width * length * 2 / 2e12
    timing = Timing("attention", "bf16", (1, heads, length, width), 3.5 * (flops / 4e14 + moved))
    found = fit("H200", [STREAM, timing])
    assert found.attention_flops_per_second == {"bf16": pytest.approx(4e14)}


def test_attention_faster_than_its_bytes_still_has_a_rate():
    timing = Timing("attention", "bf16", (1, 1, 16, 16), 1e-12)
    assert fit("H200", [STREAM, timing]).attention_flops_per_second["bf16"] > 0


@pytest.mark.parametrize("seconds", [6e6 / 1e12, 6e6 / 3e12])
def test_tensors_stream_as_slowly_as_the_slowest_size(seconds):
    small = Timing("stream", "bf16", (10**6,), seconds)
    rate = min(6e6 / seconds, 2e12)
    assert fit("H200", [STREAM, small]).bandwidth_bytes_per_second == pytest.approx(rate)


def test_a_launch_is_what_a_block_more_costs_by_its_kernels():
    block = find_facts("gpt:layers=2,hidden=64,heads=2,vocab=256,sequence=16").parts[1]
    narrow, wide = (pass_launches(block, autocast=autocast) for autocast in (True, False))
    timings = [Timing("launch", "", (2,), 5e-3), Timing("launch", "", (8,), 5e-3 + 6 * 1e-3)]
    assert fit("CPU", timings).launch_seconds == pytest.approx(1e-3 / wide)
    assert fit("H200", timings).launch_seconds == pytest.approx(1e-3 / narrow), "it is in bf16"
    assert fit("CPU", timings[:1]).launch_seconds is None
    backwards = [Timing("launch", "", (2,), 2e-3), Timing("launch", "", (8,), 1e-3)]
    assert fit("CPU", backwards).launch_seconds is None


def test_the_update_is_forecast_as_it_was_timed():
    facts, cluster = find_facts("gpt2"), Cluster.parse("1 x H200")
    timings = [Timing("update", "", (10**8,), 2e-3)]
    plan = Plan.parse("bf16 micro=1 'optimizer=adamw clip=1'")
    said = forecast(facts, plan, cluster, fit("H200", timings))
    assert said.time.optimizer == pytest.approx(2e-3 * facts.parameters / 1e8)


def test_a_whole_step_that_was_timed_corrects_the_sum_of_its_parts():
    flat = [Timing("product", "fp32", s, 6e-11 * s[0] * s[1] * s[2]) for s in PRODUCTS["cpu"]]
    parts = [STREAM, *flat, Timing("attention", "fp32", (4, 4, 256, 32), 1e-2)]
    step = Timing("step", "fp32", (4, 128), 0.15)
    plan = Plan.parse("fp32 micro=4 'optimizer=sgd clip=none'")
    facts, cluster = find_facts(STEP_MODEL), Cluster.parse("1 x CPU")
    alone = fit("CPU", parts)
    found = fit("CPU", [*parts, step])
    before, after = (forecast(facts, plan, cluster, c).time for c in (alone, found))
    assert after.step_seconds - after.optimizer == pytest.approx(0.15, rel=1e-6)
    assert before.step_seconds != pytest.approx(after.step_seconds, rel=0.05)
    assert found.corrections["fp32"].runs == 1 and not alone.corrections


def test_nothing_timed_is_nothing_known():
    found = fit("H200", [])
    assert found.bandwidth_bytes_per_second is None and found.launch_seconds is None
    assert not found.matrix_flops_per_second and found.optimizer_bytes_per_second is None


@pytest.fixture(scope="module")
def measured():
    shares = []
    return calibrate(CPU, 6.0, lambda what, share: shares.append((what, share))), shares


def test_a_processor_is_measured(measured):
    found, shares = measured
    assert found.device == "CPU" and found.context_bytes is None
    assert found.matrix_flops_per_second["fp32"] > 1e8
    assert found.bandwidth_bytes_per_second > 1e7 and found.optimizer_bytes_per_second > 1e7
    assert all(timing.seconds > 0 for timing in found.timings)
    assert [share for _, share in shares] == sorted(share for _, share in shares)
    assert shares[0][1] == 0.0 and shares[-1][1] < 1.0 and "stream" in shares[0][0]


def test_a_measured_processor_has_a_forecast_time(measured):
    facts, cluster = find_facts("gpt-tiny"), Cluster.parse("1 x CPU")
    plan = Plan(precision=FP32)
    assert forecast(facts, plan, cluster).time is None
    assert forecast(facts, plan, cluster, measured[0]).time.step_seconds > 0


def test_the_budget_ends_the_measuring():
    began = time.monotonic()
    found = calibrate(CPU, 1e-3)
    assert time.monotonic() - began < 5.0
    assert len(found.timings) <= 1


def test_what_cannot_run_here_is_unknown():
    assert attempt(Probe("product", "bf16", (-1, 4, 4)), CPU, 0.01) is None
    assert attempt(Probe("product", "fp32", (4, 4, 4)), CPU, 0.01) > 0


def test_an_accelerator_is_asked_for_every_type_and_a_processor_for_its_own():
    types = {p.compute for p in probes_of(torch.device("cuda")) if p.kind == "product"}
    assert types == {"fp32", "tf32", "bf16", "fp16", "fp8"}
    assert {p.compute for p in probes_of(CPU) if p.kind == "product"} == {"fp32", "bf16", "fp16"}


def test_every_probe_has_work_that_does_it():
    assert {p.kind for kind in ("cpu", "cuda") for p in probes_of(torch.device(kind))} == set(WORKS)
