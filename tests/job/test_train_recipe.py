"""`train` as a program calls it: a recipe in, a typed result out, nothing printed."""

import pytest

from stepladder import job
from stepladder.job import TrainResult
from stepladder.job.opening import size_run
from stepladder.job.opening.machine_probe import MachineProbe, complete
from stepladder.plan import Recipe, read_recipe
from stepladder.record import Calibration, read_journal

TINY = [
    "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "16",
    "--train.batch", "4", "--train.evaluate_batches", "1", "--train.sample", "8",
    "--train.device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> TrainResult:
    folder = tmp_path_factory.mktemp("run") / "one"
    return job.train(
        settings=[*TINY, "--train.steps", "12", "--run.folder", str(folder)], plan="fp32"
    )


def test_the_result_holds_the_run_as_values(finished):
    assert finished.steps == 12 and not finished.stopped
    assert finished.stopped_by == "the last step" and finished.checkpoint.is_dir()
    assert finished.validation_loss > 0 and finished.losses[-1][1] == finished.training_loss
    assert finished.memory.parameters == finished.forecast.memory.parameters
    assert finished.tokens_per_second > 0 and finished.step_seconds > 0
    assert finished.seconds > finished.training_seconds > 0
    assert {row.name for row in finished.comparison} >= {"parameters", "memory", "step"}


def test_the_figures_are_those_of_the_journal(finished):
    (summary,) = read_journal(finished.folder, kind="summary")
    figures = finished.figures()
    assert summary["validation loss"] == figures["validation loss"] == finished.validation_loss
    assert figures["stopped by"] == "the last step" and summary["sample"] == finished.sample


def test_nothing_is_printed(tmp_path, capfd):
    recipe = read_recipe(None, [*TINY, "--run.folder", str(tmp_path / "quiet")])
    job.train(recipe, settings=["--train.steps", "1"], plan="fp32")
    said = capfd.readouterr()
    assert said.out == "" and "Traceback" not in said.err


def test_settings_change_a_recipe_that_is_a_value():
    from stepladder.job.train_recipe import change

    changed = change(Recipe(), ["--train.steps", "3", "--optimizer.lr=1e-4"])
    assert changed.train.steps == 3 and changed.optimizer_choice().lr == 1e-4


@pytest.fixture
def quick(monkeypatch):
    """A minute of a second or so, on a machine that needs no probing."""
    rates = Calibration(device="CPU", bandwidth_bytes_per_second=1e10)

    def probe(device, precision):
        return MachineProbe(complete(rates, "fp32", 1e11, device), "fp32", 1e11, 0.1)

    monkeypatch.setattr(size_run, "probe_machine", probe)
    for name, value in (("LEAST_SECONDS", 0.01), ("TARGET_SECONDS", 0.0), ("MOST_STEPS", 12)):
        monkeypatch.setattr(size_run, name, value)
    monkeypatch.setitem(size_run.TIMED_SECONDS, "cpu", 0.01)


def test_a_sized_run_is_the_run_that_its_recipe_states(tmp_path, quick):
    """The probe leaves no trace in the mathematics, and what it decided is in the recipe."""
    folder = tmp_path / "sized"
    sized = job.train(settings=[*TINY, "--run.folder", str(folder)])
    assert 10 <= sized.steps <= 12
    stated = job.train(folder / "run.toml", settings=["--run.folder", str(tmp_path / "again")])
    assert stated.losses == sized.losses and stated.steps == sized.steps
    assert stated.validation_loss == sized.validation_loss


def test_a_sized_run_has_forecast_and_measured_time_and_an_mfu(tmp_path, quick):
    found = job.train(settings=[*TINY, "--run.folder", str(tmp_path / "run")])
    rows = {row.name: row for row in found.comparison}
    for name in ("memory", "step", "tokens/s", "training"):
        assert rows[name].error is not None, name
    assert found.peak_flops_per_second == 1e11 and found.peak_measured and found.mfu > 0
    (start,) = read_journal(found.folder, kind="start")
    assert start["probe"]["matmul_flops_per_second"] == 1e11
    (planned,) = read_journal(found.folder, kind="forecast")
    assert planned["time"]["step_seconds"] > 0
