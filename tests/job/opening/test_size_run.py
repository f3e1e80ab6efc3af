"""The built-in run is sized for its machine before the first step, and changes nothing but that."""

from dataclasses import replace

import pytest
import torch

from stepladder.hardware import find_device
from stepladder.job.opening.machine_probe import MachineProbe, complete, probe_machine, wanted
from stepladder.job.opening.size_run import (
    LEAST_SECONDS,
    LEAST_STEPS,
    MOST_STEPS,
    TARGET_SECONDS,
    GradientTime,
    forecast_from_probe,
    steps_for,
    time_evaluation,
    time_gradients,
    with_steps,
)
from stepladder.model import build
from stepladder.plan import FP32, Plan, Recipe
from stepladder.planner import forecast
from stepladder.record import Calibration
from stepladder.train import climb
from stepladder.train.tuning.planner_inputs import cluster_for
from stepladder.workload import find_facts

TOKENS = torch.arange(32).reshape(2, 16)


def test_the_steps_fill_what_is_left_of_the_minute():
    assert steps_for(0.1, elapsed_seconds=2.0) == 500
    assert steps_for(0.1, elapsed_seconds=32.0) == 200
    compiled_long = steps_for(0.1, elapsed_seconds=TARGET_SECONDS)
    assert compiled_long == int(LEAST_SECONDS / 0.1)


def test_the_number_of_steps_has_two_digits_and_limits():
    assert steps_for(0.0441, 2.0) == 1100
    assert steps_for(100.0, 4.0) == LEAST_STEPS
    assert steps_for(1e-6, 4.0) == MOST_STEPS


def test_a_short_run_reports_more_often_and_a_long_one_as_it_was():
    assert with_steps(Recipe(), 20).train.report_every == 1
    assert with_steps(Recipe(), 5000).train.report_every == Recipe().train.report_every


def test_timing_gradients_leaves_the_run_as_it_was():
    torch.manual_seed(0)
    run = climb(build("resnet-tiny"), loss="cross_entropy", plan="fp32", device="cpu")
    batch = (torch.randn(2, 1, 8, 8), torch.tensor([0, 1]))
    before = {name: value.clone() for name, value in run.module.state_dict().items()}
    found = time_gradients(run, batch)
    assert found.first > 0 and found.median > 0
    after = run.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in run.module.parameters())
    assert run.index == run.position == 0


def test_timing_an_evaluation_leaves_the_run_as_it_was():
    run = climb(build("gpt-tiny", sequence=16), loss="cross_entropy", plan="fp32", device="cpu")
    before = {name: value.clone() for name, value in run.module.state_dict().items()}
    assert time_evaluation(run, (TOKENS, TOKENS)) > 0
    after = run.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert run.module.training and run.index == 0


def test_the_forecast_is_the_timed_gradients_and_the_planners_update():
    facts, cluster = find_facts("gpt-tiny", 128), cluster_for(torch.device("cpu"))
    rates = complete(Calibration(device="CPU"), "fp32", 1e11, torch.device("cpu"))
    plan = Plan.parse("fp32 batch=16 micro=16").settle(1)
    planned = forecast(facts, plan, cluster, rates)
    probe = MachineProbe(rates, "fp32", 1e11, 1.0)
    found = forecast_from_probe(planned, GradientTime(2.0, 0.5), probe)
    assert found.time.step_seconds == pytest.approx(0.5 + planned.time.optimizer)
    assert found.time.optimizer == planned.time.optimizer
    assert found.mfu == pytest.approx(found.flops_per_step / found.time.step_seconds / 1e11)
    assert found.step_seconds.low < found.time.step_seconds < found.step_seconds.high


def test_a_device_of_the_table_keeps_its_own_peak():
    facts, cluster = find_facts("gpt2", 1024), cluster_for(torch.device("cpu"))
    h200 = find_device("H200")
    planned = forecast(
        facts, Plan.parse("bf16 batch=8 micro=8").settle(1), replace(cluster, device=h200)
    )
    probe = MachineProbe(Calibration(), "bf16", 1e14, 1.0)
    found = forecast_from_probe(planned, GradientTime(2.0, 0.5), probe)
    assert found.peak_flops_per_second == h200.peak("bf16")


def test_a_probe_knows_all_that_a_forecast_needs():
    found = probe_machine(torch.device("cpu"), FP32)
    rates = found.calibration
    assert rates.matrix_flops_per_second["fp32"] > 0 and rates.bandwidth_bytes_per_second > 0
    assert found.peak_flops_per_second > 1e8 and found.compute == "fp32"


def test_a_probe_times_only_what_this_precision_needs():
    from stepladder.calibrate.probe import Probe

    assert wanted(Probe("product", "fp32", (1, 1, 1)), "fp32")
    assert wanted(Probe("update", "", (1,)), "fp32")
    assert not wanted(Probe("product", "bf16", (1, 1, 1)), "fp32")
    assert not wanted(Probe("convolution", "fp32", (1,)), "fp32")
    assert wanted(Probe("stream", "fp32", (2**20,)), "fp32")
    assert not wanted(Probe("stream", "fp32", (2**24,)), "fp32"), "the process would show it"
    assert wanted(Probe("stream", "bf16", (2**28,)), "bf16")
