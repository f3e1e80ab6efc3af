import json

import pytest

from stepladder.record import Forecast, Interval, Memory, Time
from stepladder.record.cost import Cost


def make(**changed) -> Forecast:
    usual = {
        "plan": "bf16",
        "memory": Memory(parameters=2**30),
        "memory_limit_bytes": 2**31,
        "host_bytes": 0,
        "fits": True,
        "reasons": (),
        "num_devices": 4,
        "time": Time(matrix=1.5, communication=0.5),
        "step_seconds": Interval(1.8, 2.4),
        "tokens_per_step": 8000,
        "flops_per_step": 4e15,
        "peak_flops_per_second": 1e15,
        "watts": 500.0,
        "dollars_per_hour": 3.0,
    }
    return Forecast(**{**usual, **changed})


def test_rates_follow_from_the_step() -> None:
    found = make()
    assert found.tokens_per_second == 4000
    assert found.tokens_per_second_per_device == 1000
    assert found.mfu == pytest.approx(4e15 / (2 * 4 * 1e15))


def test_price_and_energy_follow_from_the_hours() -> None:
    found = make()
    tokens = 4000 * 3600 * 10  # ten hours
    cost = found.cost_for(tokens, grams_per_kwh=100)
    assert cost.seconds == 36000 and cost.device_hours == 10 * 4
    assert cost.dollars == pytest.approx(10 * 4 * 3.0)
    assert cost.kilowatt_hours == pytest.approx(10 * 4 * 0.5)
    assert cost.co2_kilograms == pytest.approx(10 * 4 * 0.5 * 0.1)


def test_what_nobody_can_know_is_none() -> None:
    dark = make(time=None)
    assert dark.mfu is None and dark.tokens_per_second_per_device is None
    assert dark.cost_for(1e9) == Cost(None, None, None, None, None)
    assert make(dollars_per_hour=None).cost_for(1e9).dollars is None
    unpowered = make(watts=None).cost_for(1e9)
    assert unpowered.kilowatt_hours is unpowered.co2_kilograms is None and unpowered.dollars
    assert make(peak_flops_per_second=None).mfu is make(flops_per_step=None).mfu is None


def test_an_interval_contains_its_ends() -> None:
    assert 1.8 in Interval(1.8, 2.4) and 2.5 not in Interval(1.8, 2.4)


def test_a_forecast_is_plain_values() -> None:
    table = json.loads(json.dumps(make().to_dict()))
    assert table["memory"]["peak_bytes"] == 2**30
    assert table["allocated_bytes"] <= table["reserved_bytes"] <= 2**30
    assert table["time"]["step_seconds"] == 2.0
    assert table["mfu"] == 0.5
    assert make(time=None).to_dict()["time"] is None


def test_print_shows_a_person_what_is_known() -> None:
    assert str(make(price_source="a list, 2026")) == (
        "bf16\n  memory: 1.00 of 2.0 GiB, fits\n  step: 2 s, 1.8 to 2.4 nine times in ten\n"
        "  throughput: 1,000 tokens/s a device\n  MFU: 50.0%\n"
        "  price: $12.00 an hour\n  price of a device-hour: $3.00 (a list, 2026)"
    )
    little = make(time=None, step_seconds=None, fits=False, reasons=("too <large>",))
    assert str(little) == (
        "bf16\n  memory: 1.00 of 2.0 GiB, does not fit\n  price: $12.00 an hour\n"
        "  because: too <large>\n  price of a device-hour: $3.00 (no source is known)"
    )
    assert "price: unknown" in str(make(dollars_per_hour=None))
    assert "<td>because</td><td>too &lt;large&gt;</td>" in little._repr_html_()
