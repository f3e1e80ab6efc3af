"""What a new user reads before the first step: forecast, where it comes from, how to prove it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from stepladder.cli.results.first_screen import SAMENESS, forecast_lines, mfu_line
from stepladder.job import JobStart
from stepladder.job.opening.machine_probe import MachineProbe
from stepladder.job.opening.size_run import GradientTime, SizedRun
from stepladder.plan import Plan, Recipe
from stepladder.record import Calibration, Forecast, Memory, Time

PLANNED = Forecast(
    plan="fp32", memory=Memory(parameters=2**29), memory_limit_bytes=None, host_bytes=0,
    fits=True, reasons=(), num_devices=1, time=Time(matrix=0.1), tokens_per_step=2048,
    flops_per_step=4e9, peak_flops_per_second=1.2e11,
)  # fmt: skip


def start(forecast, sized=None) -> JobStart:
    return JobStart("gpt-tiny", 10, 0, None, True, forecast, sized)


def sized() -> SizedRun:
    rates = Calibration(bandwidth_bytes_per_second=2e10)
    probe = MachineProbe(rates, "fp32", 1.2e11, 3.14)
    return SizedRun(Recipe(), None, probe, GradientTime(1.5, 0.09), 51.2)


def test_the_forecast_has_memory_time_and_the_probe_it_comes_from():
    first, second, third = forecast_lines(start(PLANNED, sized()))
    assert first == (
        "Forecast: 512 MiB of tensors, 100 ms a step, 20,480 tokens/s, MFU 33%; "
        "500 steps in 51 s, about a minute of this machine in all."
    )
    assert second == (
        "From a probe of 3.1 s: 120 GFLOP/s fp32 in matmuls, 20 GB/s of memory; forward and "
        "backward of the first batch, timed: 90 ms (1.5 s the first time)."
    )
    assert third == SAMENESS


def test_a_step_time_that_is_unknown_names_the_command_that_measures_it():
    (line,) = forecast_lines(start(replace(PLANNED, time=None)))
    assert "unknown until 'stepladder calibrate' has run here." in line
    assert forecast_lines(start(None)) == []


def test_mfu_says_what_it_is_a_share_of():
    result = SimpleNamespace(
        mfu=0.43, peak_flops_per_second=1.2e11, peak_measured=True, plan=Plan.parse("fp32")
    )
    assert mfu_line(result) == "MFU 43% of this CPU's measured 120 GFLOP/s fp32."
    result.peak_measured, result.peak_flops_per_second = False, 9.89e14
    result.plan = Plan.parse("bf16")
    assert mfu_line(result) == "MFU 43% of the device's dense 989 TFLOP/s bf16."
    result.mfu = None
    assert mfu_line(result) == ""


def test_the_commands_that_prove_sameness_are_there():
    from stepladder.cli.commands import verify

    source = Path(verify.__file__).read_text()
    for what in ("parity", "resume"):
        assert f"stepladder verify {what}" in SAMENESS and f'"{what}"' in source


def test_memory_on_a_gpu_counts_the_runtime_too():
    taken = replace(PLANNED, memory=Memory(parameters=2**29, context=2**29))
    assert forecast_lines(start(taken))[0].startswith("Forecast: 1 GiB of memory, ")


def test_a_device_that_nobody_knows_has_its_time_from_the_probe():
    unknown = SimpleNamespace(unknown="X1 is not in the device table")
    first, *_ = forecast_lines(start(None, replace(sized(), comparison=unknown)))
    assert first.startswith("Forecast: 90 ms a step, no memory (X1 is not in the device table); ")
