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


def test_a_power_cap_costs_time_and_saves_energy():
    asked = {"plan": "bf16 zero3 micro=1 batch=8 recompute=blocks"}
    free, capped = (sl.plan("llama3-8b", f"8 x H100-80GB{w}", **asked) for w in ("", ", 500 W"))
    slower = capped.forecast.time.step_seconds / free.forecast.time.step_seconds
    assert 1.02 < slower < (700 / 500) ** 0.5
    joules = [each.forecast.cost_for(1e12).kilowatt_hours for each in (free, capped)]
    assert joules[1] / joules[0] == pytest.approx(slower * 500 / 700)


def test_a_price_replaces_the_tables_everywhere():
    asked = {"plan": "bf16 ddp micro=1", "on": "8 x H100-80GB"}
    listed, given = sl.plan("gpt2", **asked).forecast, sl.plan("gpt2", **asked, price=2).forecast
    assert "early 2026" in listed.price_source and given.price_source == "as given"
    assert given.cluster_dollars_per_hour == given.to_dict()["cluster_dollars_per_hour"] == 16
    hours = given.cost_for(1e9).device_hours
    assert given.cost_for(1e9).dollars == pytest.approx(2 * hours)
    assert sl.forecast("gpt2", "bf16 ddp micro=1", "8 x H100-80GB", price=2) == given
    found = sl.search("gpt2", "8 x H100-80GB", batch=64, price=2)
    assert all(each.cluster_dollars_per_hour == 16 for each in found.forecasts)
    assert "$16.00 an hour" in str(found) and str(found).count("as given") == 1
    assert "$16.00 an hour (as given)" in str(sl.plan("gpt2", **asked, price=2))


def test_a_device_that_nobody_lists_asks_for_a_price():
    said = str(sl.forecast("gpt2", "bf16 ddp micro=1", "8 x H20"))
    assert said.endswith(
        "price: unknown, as nobody lists one; price=2.5 counts dollars a device-hour"
    )
    assert (
        sl.plan("gpt2", "8 x H20", plan="bf16 ddp micro=1").forecast.cost_for(1e9).dollars is None
    )


@pytest.mark.parametrize(
    ("price", "message"),
    [
        (-1, "price: -1 is not a number of dollars for one device and hour. "
             "Use 2.5, or leave it out for the table's."),
        (float("nan"), "price: nan is not a number of dollars"),
        (True, "price: True is not a number of dollars"),
        ("2", "price: takes no str. Give the dollars of one device for one hour: 2.5."),
    ],
)  # fmt: skip
def test_what_is_no_price_is_refused(price, message):
    with pytest.raises(PlanError) as raised:
        sl.plan("gpt2", "8 x H20", price=price)
    assert str(raised.value).startswith(message)
