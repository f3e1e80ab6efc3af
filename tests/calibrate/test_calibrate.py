import time
from dataclasses import replace
from importlib import import_module
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepladder.calibrate import calibrate
from stepladder.calibrate.calibrate import SMALL_MATMUL, attempt
from stepladder.calibrate.fit_rates import STEP_MODEL, fit
from stepladder.calibrate.launch_costs import TINY
from stepladder.calibrate.probes import PRODUCTS, WORKS, Probe, probes_of
from stepladder.hardware import Cluster, find_device
from stepladder.plan import BF16, FP32, Plan
from stepladder.planner import forecast, part_launch_cost
from stepladder.planner.memory.recompute_depths import RecomputeShares
from stepladder.planner.time.device_speed import speed_of
from stepladder.record import Timing
from stepladder.workload import find_facts

from .short_probes import shorten

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


def test_the_planner_forecasts_the_very_matmuls_that_were_timed():
    timings = products("bf16", 6e14, 2.0, 2)
    speed = speed_of(find_device("H200"), BF16, fit("H200", [STREAM, *timings]))
    for timing in timings:
        rows, inner, columns = timing.shape
        elements = rows * inner + rows * columns + inner * columns
        said = 3 * speed.matmul(2 * rows * inner * columns, elements)
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


def test_large_tensors_say_how_fast_a_device_streams_and_small_ones_how_late_it_starts():
    small = Timing("stream", "bf16", (10**6,), 6e6 / 2e12 + 4e-6)
    found = fit("H200", [STREAM, small])
    assert found.bandwidth_bytes_per_second == pytest.approx(2e12)
    assert found.kernel_seconds == pytest.approx(4e-6)


COSTS = {
    "product": 7e-5, "cheap": 2e-5, "block again": 2e-3, "launch again": 4e-5,
    "block chosen": 4e-3, "launch chosen": 1.76e-4, "tensor": 5e-6, "step": 1e-3,
}  # fmt: skip


def asked_timings() -> list[Timing]:
    """Of a host on which everything costs exactly so much."""
    found = []
    for (kind, model), (base, autocast), (way, depths), depth in product(
        TINY.items(), (("", True), ("pure", False)),
        (("", RecomputeShares()), ("blocks", RecomputeShares(0, 0, 1)),
         ("selective", RecomputeShares(0, 1, 0))), (2, 8),
    ):  # fmt: skip
        block = find_facts(model.format(2)).parts[1]
        one = part_launch_cost(block, depths, autocast=autocast, factors=COSTS).total
        found.append(Timing(kind, f"{base} {way}".strip(), (depth,), 1e-3 + depth * one))
    update = [Timing("ask for an update", "", (d,), 1e-3 + 16 * d * 5e-6) for d in (2, 8)]
    return found + update


def test_host_costs_are_in_units_of_the_usual_launch():
    found = fit("H200", asked_timings())
    launch, factors = found.launch_seconds, found.launch_factors
    assert launch == pytest.approx((20 * 7e-5 + 64 * 2e-5) / 84), "a tiny GPT's mean"
    assert {name: cost * launch for name, cost in factors.items()} == pytest.approx(COSTS)
    assert "compiled" not in factors, "what was not timed stays unknown"


def test_a_host_that_varies_counts_by_its_median():
    slow = [replace(t, seconds=3 * t.seconds) for t in asked_timings()]
    once, often = fit("H200", asked_timings()), fit("H200", asked_timings() * 2 + slow)
    assert often.launch_seconds == pytest.approx(once.launch_seconds)


def test_one_disturbed_timing_does_not_move_a_blocks_cost_to_its_launches():
    """As a neighbour did it: the smallest block's probe took half as long again."""
    disturbed = [
        replace(t, seconds=1.5 * t.seconds)
        if (t.kind, t.compute, t.shape) == ("launch", "pure selective", (8,)) else t
        for t in asked_timings()
    ]  # fmt: skip
    calm, found = fit("H200", asked_timings()), fit("H200", disturbed)
    for name in ("block chosen", "launch chosen"):
        assert found.launch_factors[name] == pytest.approx(calm.launch_factors[name], rel=0.01)


def test_recomputing_that_one_block_alone_shows_stays_unknown():
    one = [t for t in asked_timings() if t.kind == "launch" and not t.compute.startswith("pure")]
    assert not {"block again", "block chosen"} & set(fit("H200", one).launch_factors)


def test_one_model_alone_does_not_tell_matmuls_from_the_rest():
    timings = [t for t in asked_timings() if (t.kind, t.compute) == ("launch", "")]
    found = fit("H200", timings)
    assert not found.launch_factors
    block = find_facts(TINY["launch"].format(2)).parts[1]
    assert found.launch_seconds == pytest.approx(
        part_launch_cost(block, autocast=True, factors=COSTS).total
        / part_launch_cost(block, autocast=True).total
    )


def test_asking_for_an_update_leaves_the_next_one_the_same_work():
    update = WORKS["ask for an update"](Probe("ask for an update", "", (1,)), CPU)
    update()
    update()


def test_convolutions_are_rated_apart_and_those_of_colours_again():
    shape, colours = (128, 64, 56, 64, 3, 1), (128, 3, 224, 64, 7, 2)
    flops = 6 * 128 * 56**2 * 64 * 9 * 64
    found = fit(
        "H200",
        [STREAM, Timing("convolution", "bf16", shape, flops / 1e14),
         Timing("colours", "bf16", colours, 4 * 128 * 112**2 * 3 * 49 * 64 / 2e13)],
    )  # fmt: skip
    assert found.convolution_flops_per_second == {"bf16": pytest.approx(1e14)}
    assert found.colour_flops_per_second == {"bf16": pytest.approx(2e13)}


def test_kernels_that_do_not_stream_are_rated_by_type_and_by_their_own_pace():
    size = 16384 * 4096
    found = fit(
        "H200",
        [Timing("turn", "bf16", (16384, 4096), 4 * size / 1e12),
         Timing("turn", "fp32", (16384, 4096), 8 * size / 2e12),
         Timing("channel", "bf16", (64, 256, 56), 5 * 64 * 56**2 / 1.5e9),
         Timing("pool", "bf16", (64, 256, 56), 3.5 * 64 * 256 * 56**2 / 2e11)],
    )  # fmt: skip
    assert found.rough_bytes_per_second == {2: pytest.approx(1e12), 4: pytest.approx(2e12)}
    assert found.elements_per_second["channel"] == pytest.approx(1.5e9), "of each channel"
    assert found.elements_per_second["pool"] == pytest.approx(2e11)


def test_a_launch_is_what_a_block_more_costs_by_its_kernels():
    block = find_facts("gpt:layers=2,hidden=64,heads=2,vocab=256,sequence=16").parts[1]
    narrow = part_launch_cost(block, autocast=True).total
    wide = part_launch_cost(block, autocast=False).total
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
    # Short for each and long for all: a busy machine leaves none of them out.
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        return calibrate(CPU, 300.0, lambda what, share: shares.append((what, share))), shares


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
    began = time.process_time()
    found = calibrate(CPU, 1e-3)
    assert time.process_time() - began < 5.0
    assert len([one for one in found.timings if one.shape != SMALL_MATMUL]) <= 1


def test_larger_shapes_of_what_takes_seconds_are_left_out(monkeypatch):
    tried = []

    def slow_beyond_the_small(probe, *_):
        tried.append((probe.kind, probe.compute))
        large = probe.kind == "product" and probe.shape != SMALL_MATMUL
        return 2.0 if probe.compute == "fp16" and large else 1e-3

    module = import_module("stepladder.calibrate.calibrate")
    monkeypatch.setattr(module, "attempt", slow_beyond_the_small)
    assert "fp16" in calibrate(CPU).matrix_flops_per_second
    small = 1  # tried first, to see whether the type is emulated
    assert tried.count(("product", "fp16")) == small + 1
    assert tried.count(("product", "bf16")) == small + len(PRODUCTS["cpu"])


def test_a_type_that_the_processor_emulates_is_timed_once_and_small(monkeypatch):
    tried = []

    def emulated(probe, *_):
        tried.append((probe.kind, probe.compute, probe.shape))
        return 0.5 if probe.compute == "bf16" else 1e-3

    monkeypatch.setattr(import_module("stepladder.calibrate.calibrate"), "attempt", emulated)
    found = calibrate(CPU)
    assert [what for what in tried if what[1] == "bf16"] == [("product", "bf16", SMALL_MATMUL)]
    assert found.matrix_flops_per_second["bf16"] < 1e9


def test_what_cannot_run_here_is_unknown():
    assert attempt(Probe("product", "bf16", (-1, 4, 4)), CPU, 0.01) is None
    assert attempt(Probe("product", "fp32", (4, 4, 4)), CPU, 0.01) > 0


def test_an_accelerator_is_asked_for_every_type_and_a_processor_for_its_own():
    types = {p.compute for p in probes_of(torch.device("cuda")) if p.kind == "product"}
    assert types == {"fp32", "tf32", "bf16", "fp16", "fp8"}
    assert {p.compute for p in probes_of(CPU) if p.kind == "product"} == {"fp32", "bf16", "fp16"}


def test_every_probe_has_work_that_does_it():
    assert {p.kind for kind in ("cpu", "cuda") for p in probes_of(torch.device(kind))} == set(WORKS)
