from dataclasses import replace

import pytest
import torch

from stepladder.cli.main import main
from stepladder.job.summary.forecast_comparison import ComparisonRow, ForecastComparison
from stepladder.model import build
from stepladder.plan import Plan
from stepladder.record import (
    Calibration,
    Memory,
    Report,
    Time,
    calibration_path,
    load_calibration,
    read_journal,
)
from stepladder.train import climb, fit

FLAT = Calibration(
    device="CPU",
    matrix_flops_per_second={"fp32": 1e11},
    attention_flops_per_second={"fp32": 1e11},
    bandwidth_bytes_per_second=1e10,
    launch_seconds=1e-6,
)
TOKENS = torch.arange(32).reshape(2, 16)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = calibration_path("CPU")
    path.parent.mkdir(parents=True)
    return path


def start():
    torch.manual_seed(0)
    plan = Plan.parse("fp32 batch=2")
    run = climb(build("gpt-tiny", sequence=16), loss="cross_entropy", plan=plan, device="cpu")
    return run, ForecastComparison.start(run, run.plan)


def report(step: int, seconds: float, data: float = 0.0) -> Report:
    return Report(step, 1.0, 1.0, 1e-3, 32, seconds, 10**6, 32 / seconds, data_seconds=data)


def train(run, comparison, steps):
    return [r.read() for r in comparison.measure_memory(fit(run, [(TOKENS, TOKENS)] * steps))]


def test_measuring_memory_changes_no_loss():
    run, comparison = start()
    measured = [r.loss for r in train(run, comparison, 4)]
    plain, _ = start()
    assert [r.loss for r in fit(plain, [(TOKENS, TOKENS)] * 4)] == measured


def test_one_steps_memory_is_measured_by_owner():
    run, comparison = start()
    train(run, comparison, 3)
    parameters = sum(p.numel() * 4 for p in run.module.parameters())
    assert comparison.memory.parameters == parameters
    assert comparison.memory.optimizer >= 2 * parameters
    assert comparison.memory.activations > 0


def test_the_forecast_knows_the_state_to_the_byte():
    run, comparison = start()
    train(run, comparison, 3)
    assert comparison.forecast.memory.parameters == comparison.memory.parameters


def test_a_run_of_one_step_measures_no_memory():
    run, comparison = start()
    assert len(train(run, comparison, 1)) == 1 and comparison.memory is None
    (memory,) = [row for row in comparison.rows() if row.name == "memory"]
    assert memory.measured is None and memory.error is None


def test_the_measured_step_is_left_out_of_the_timing():
    run, comparison = start()
    reports = comparison.measure_memory(fit(run, [(TOKENS, TOKENS)] * 3))
    next(reports)
    next(reports)  # the measured one, whose report nobody reads
    next(reports)
    assert run.clock._step == 2


def test_only_steady_reports_count():
    _, comparison = start()
    for step, seconds in ((0, 9.0), (1, 8.0), (2, 2.0), (3, 1.0), (4, 3.0)):
        comparison.add(report(step, seconds))
    assert comparison.step_seconds == 2.0
    assert comparison.measured()["tokens_per_second"] == 16.0


def test_a_resumed_run_warms_up_again():
    run, comparison = start()
    run.index = 500
    assert [r.step for r in train(run, comparison, 3)] == [500, 501, 502]
    for step in (500, 501, 502):
        comparison.add(report(step, 1.0))
    assert [r.step for r in comparison.reports] == [502]


def test_each_owner_and_cause_has_a_row():
    _, comparison = start()
    comparison.forecast = replace(
        comparison.forecast, memory=Memory(parameters=2 * 2**20), time=Time(matrix=0.5, data=0.0)
    )
    comparison.memory = Memory(parameters=2**20, logits=2**20)
    comparison.add(report(5, 2.0, data=1.0))
    rows = {row.name: (row.forecast, row.measured, row.error) for row in comparison.rows()}
    assert rows["parameters"] == (2 * 2**20, 2**20, 1.0)
    assert rows["logits"] == (0, 2**20, -1.0)
    assert rows["memory"] == (2 * 2**20, 2 * 2**20, 0.0)
    assert rows["matrix"] == (0.5, None, None)
    assert rows["data"] == (0.0, 1.0, -1.0)
    assert rows["step"] == (0.5, 2.0, -0.75)
    assert "optimizer" not in rows and "bubble" not in rows


def test_why_nothing_was_forecast_is_recorded():
    run, _ = start()
    run.flops.module = torch.nn.Linear(2, 2)
    comparison = ForecastComparison.start(run, run.plan)
    assert comparison.forecast is None and comparison.unknown


def test_a_run_refines_the_calibration_of_its_device(cache):
    FLAT.save(cache)
    _, comparison = start()
    whole = comparison.forecast.time.step_seconds
    for step in range(2, 5):
        comparison.add(report(step, 1.5 * whole + 1.0, data=1.0))
    assert comparison.refine() == "calibration of CPU: fp32 forecasts × 1.50 after 1 run"
    found = load_calibration("CPU").corrections["fp32"]
    assert found.factor == pytest.approx(1.5) and found.runs == 1
    _, again = start()
    assert again.forecast.time.step_seconds == pytest.approx(1.5 * whole)


def test_a_run_that_waited_for_its_host_refines_what_a_launch_costs(cache):
    replace(FLAT, launch_seconds=1.0).save(cache)
    _, comparison = start()
    whole = comparison.forecast.time.step_seconds
    for step in range(2, 5):
        comparison.add(report(step, 1.5 * whole))
    assert comparison.refine() == "calibration of CPU: the host's launches × 1.50 after 1 run"
    _, again = start()
    assert again.forecast.time.step_seconds == pytest.approx(1.5 * whole, rel=1e-3)
    assert again.forecast.time.matrix == comparison.forecast.time.matrix


def test_a_short_run_refines_nothing(cache):
    FLAT.save(cache)
    _, comparison = start()
    comparison.add(report(2, 1.0))
    assert comparison.refine() is None and load_calibration("CPU") == FLAT


def test_a_device_nobody_calibrated_stays_so(cache):
    _, comparison = start()
    for step in range(2, 9):
        comparison.add(report(step, 1.0))
    assert comparison.refine() is None and not cache.exists()


def test_zero_measured_has_no_error():
    assert ComparisonRow("data", 1.0, 0.0, "seconds").error is None


def test_every_run_ends_with_forecast_beside_measurement(tmp_path, capsys):
    folder = tmp_path / "run"
    small = {
        "--model.name": "gpt-tiny", "--model.sequence": "32", "--train.steps": "4",
        "--train.batch": "2", "--train.report_every": "1", "--train.sample": "0",
        "--train.device": "cpu", "--run.folder": str(folder), "--train.evaluate_batches": "1",
    }  # fmt: skip
    assert main(["train", *(word for pair in small.items() for word in pair)]) == 0
    out = capsys.readouterr().out
    assert "Forecast and measured" in out and "This plan because: " in out
    kinds = {entry["kind"]: entry for entry in read_journal(folder)}
    assert kinds["forecast"]["memory"]["parameters"] == kinds["measured"]["memory"]["parameters"]
    assert kinds["measured"]["step_seconds"] > 0
    assert kinds["start"]["because"]
