from dataclasses import replace

import pytest
import torch

from stepladder.cli.main import main
from stepladder.cli.training.forecast_comparison import Closing, row, show_closing
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
    return run, Closing.start(run, run.plan)


def report(step: int, seconds: float, data: float = 0.0) -> Report:
    return Report(step, 1.0, 1.0, 1e-3, 32, seconds, 10**6, 32 / seconds, data_seconds=data)


def train(run, closing, steps):
    return [r.read() for r in closing.watch(fit(run, [(TOKENS, TOKENS)] * steps))]


def test_watching_changes_no_loss():
    run, closing = start()
    watched = [r.loss for r in train(run, closing, 4)]
    plain, _ = start()
    assert [r.read().loss for r in fit(plain, [(TOKENS, TOKENS)] * 4)] == watched


def test_one_steps_memory_is_measured_by_owner():
    run, closing = start()
    train(run, closing, 3)
    parameters = sum(p.numel() * 4 for p in run.module.parameters())
    assert closing.memory.parameters == parameters
    assert closing.memory.optimizer >= 2 * parameters
    assert closing.memory.activations > 0


def test_the_forecast_knows_the_state_to_the_byte():
    run, closing = start()
    train(run, closing, 3)
    assert closing.forecast.memory.parameters == closing.memory.parameters


def test_a_run_of_one_step_measures_no_memory():
    run, closing = start()
    assert len(train(run, closing, 1)) == 1 and closing.memory is None
    rows = {name: rest for name, *rest in closing.rows()}
    assert rows["memory"][1] == "unknown"


def test_the_watched_step_is_left_out_of_the_timing():
    run, closing = start()
    reports = closing.watch(fit(run, [(TOKENS, TOKENS)] * 3))
    next(reports)
    next(reports)  # the watched one, whose report nobody reads
    next(reports)
    assert run.clock._step == 2


def test_only_steady_reports_count():
    _, closing = start()
    for step, seconds in ((0, 9.0), (1, 8.0), (2, 2.0), (3, 1.0), (4, 3.0)):
        closing.note(report(step, seconds))
    assert closing.step_seconds == 2.0
    assert closing.measured()["tokens_per_second"] == 16.0


def test_a_resumed_run_warms_up_again():
    run, closing = start()
    run.index = 500
    assert [r.step for r in train(run, closing, 3)] == [500, 501, 502]
    for step in (500, 501, 502):
        closing.note(report(step, 1.0))
    assert [r.step for r in closing.reports] == [502]


def test_each_owner_and_cause_has_a_row():
    _, closing = start()
    closing.forecast = replace(
        closing.forecast, memory=Memory(parameters=2 * 2**20), time=Time(matrix=0.5, data=0.0)
    )
    closing.memory = Memory(parameters=2**20, logits=2**20)
    closing.note(report(5, 2.0, data=1.0))
    rows = {name: rest for name, *rest in closing.rows()}
    assert rows["parameters"] == ["2 MiB", "1 MiB", "+100.0%"]
    assert rows["logits"] == ["0 MiB", "1 MiB", "-100.0%"]
    assert rows["memory"] == ["2 MiB", "2 MiB", "+0.0%"]
    assert rows["matrix"] == ["500 ms", "unknown", "unknown"]
    assert rows["data"] == ["0 ms", "1,000 ms", "-100.0%"]
    assert rows["step"] == ["500 ms", "2,000 ms", "-75.0%"]
    assert "optimizer" not in rows and "bubble" not in rows


def test_what_is_unknown_is_said_and_not_guessed(capsys):
    run, _ = start()
    run.flops.module = torch.nn.Linear(2, 2)
    closing = Closing.start(run, run.plan)
    assert closing.forecast is None
    show_closing(closing, None)
    assert "Nothing was forecast: " in capsys.readouterr().out


def test_a_speed_nobody_measured_names_the_command_that_does(capsys):
    _, closing = start()
    show_closing(closing, None)
    assert "'stepladder calibrate' measures it" in capsys.readouterr().out


def test_a_run_refines_the_calibration_of_its_device(cache):
    FLAT.save(cache)
    _, closing = start()
    whole = closing.forecast.time.step_seconds
    for step in range(2, 5):
        closing.note(report(step, 1.5 * whole + 1.0, data=1.0))
    assert closing.refine() == "calibration of CPU: fp32 forecasts × 1.50 after 1 run"
    found = load_calibration("CPU").corrections["fp32"]
    assert found.factor == pytest.approx(1.5) and found.runs == 1
    _, again = start()
    assert again.forecast.time.step_seconds == pytest.approx(1.5 * whole)


def test_a_run_that_waited_for_its_host_refines_what_a_launch_costs(cache):
    replace(FLAT, launch_seconds=1.0).save(cache)
    _, closing = start()
    whole = closing.forecast.time.step_seconds
    for step in range(2, 5):
        closing.note(report(step, 1.5 * whole))
    assert closing.refine() == "calibration of CPU: the host's launches × 1.50 after 1 run"
    _, again = start()
    assert again.forecast.time.step_seconds == pytest.approx(1.5 * whole, rel=1e-3)
    assert again.forecast.time.matrix == closing.forecast.time.matrix


def test_a_short_run_refines_nothing(cache):
    FLAT.save(cache)
    _, closing = start()
    closing.note(report(2, 1.0))
    assert closing.refine() is None and load_calibration("CPU") == FLAT


def test_a_device_nobody_calibrated_stays_so(cache):
    _, closing = start()
    for step in range(2, 9):
        closing.note(report(step, 1.0))
    assert closing.refine() is None and not cache.exists()


def test_zero_measured_has_no_share():
    assert row("data", 1.0, 0.0, 1.0, "s") == ["data", "1 s", "0 s", "unknown"]


def test_next_to_nothing_measured_is_told_without_a_percentage():
    assert row("activations", 1e6, 20.0, 1.0, "")[-1] == "over 10 ×"
    assert row("activations", 1e6, 2e5, 1.0, "")[-1] == "+400.0%"


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
