"""`sl.plan` is what `stepladder plan` does: a search, or the forecast of one plan."""

from dataclasses import replace

import pytest

import stepladder as sl
from stepladder.errors import PlanError
from stepladder.record import Calibration


def test_the_fastest_plan_comes_with_its_forecast_and_reasons():
    result = sl.plan("gpt2", on="8 x H100-80GB", batch=64)
    assert result.choices is not None and result.plan == result.choices.best.plan
    assert result.forecast == result.choices.forecasts[0] and result.fits
    assert result.explanation is not None and str(result).endswith(result.explanation.why[-1])
    assert result.to_dict()["plan"] == str(result.plan)


def test_a_plan_that_is_given_is_forecast_with_the_batch_that_is_given():
    result = sl.plan("gpt2", on="2 x H100-80GB", plan="bf16 ddp micro=1", batch=4)
    assert (result.plan.batch.sequences, result.plan.batch.micro_batches) == (4, 2)
    assert result.choices is None and result.forecast.plan == str(result.plan)


def test_facts_of_a_module_are_planned_and_the_module_itself_is_refused():
    facts = sl.describe("gpt2")
    asked = {"on": "1 x H100-80GB", "plan": "bf16 micro=1 batch=1"}
    assert sl.plan(facts, **asked).forecast == sl.plan("gpt2", **asked).forecast
    with pytest.raises(PlanError) as raised:
        sl.plan(3, **asked)
    assert str(raised.value) == (
        "model: a int is neither a name nor the facts of a workload. "
        "Give sl.describe(module, sample=batch)."
    )


def test_speeds_of_another_device_are_refused(tmp_path):
    made = Calibration(device="A100-80GB")
    made.save(tmp_path / "speeds.json")
    asked = {"on": "1 x H100-80GB", "plan": "bf16 micro=1 batch=1"}
    for given in (made, tmp_path / "speeds.json"):
        with pytest.raises(PlanError, match="calibration: was measured on A100-80GB, not H100"):
            sl.plan("gpt2", **asked, calibration=given)
    assert sl.plan("gpt2", **asked, calibration=replace(made, device="")).fits


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(PlanError, match="batch: 0 is not a number of sequences"):
        sl.plan("gpt2", on="1 x H100-80GB", batch=0)
