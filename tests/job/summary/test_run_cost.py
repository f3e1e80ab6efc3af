"""Money, energy and utilisation of a run."""

from types import SimpleNamespace

import pytest
import torch

from stepladder.cli.results.run_plots import plot_devices
from stepladder.hardware import find_device
from stepladder.job.summary import run_cost as costs
from stepladder.job.summary.run_cost import cost_of, measured_watts
from stepladder.record import Journal


def world(ranks=8):
    return SimpleNamespace(device=torch.device("cpu"), place=SimpleNamespace(num_ranks=ranks))


def test_a_million_tokens_cost_rent_and_energy(monkeypatch):
    h100 = find_device("H100-80GB")
    monkeypatch.setattr(costs, "device_of", lambda _: h100)
    found = cost_of(world(), 100_000.0).figures()
    seconds = 10.0
    assert found["dollars per million tokens"] == pytest.approx(
        8 * seconds / 3600 * h100.dollars_per_hour
    )
    assert found["kWh per million tokens (at the board's limit)"] == pytest.approx(
        8 * seconds / 3600 * 0.7
    )
    measured = cost_of(world(), 100_000.0, watts=[300.0, 400.0]).figures()
    assert measured["kWh per million tokens (measured power)"] == pytest.approx(
        8 * seconds / 3600 * 0.35
    )


def test_a_device_nobody_prices_costs_something_unknown():
    assert set(cost_of(world(), 5.0).figures().values()) == {None}
    assert cost_of(world(), None) is None


def test_readings_of_devices_are_drawn_and_averaged(tmp_path):
    with Journal(tmp_path) as journal:
        for step in range(5):
            journal.write("device", step=step, utilisation=90 + step, power_w=300.0 + step)
        journal.write("device", step=5, utilisation=None)
    from stepladder.record import read_journal

    entries = list(read_journal(tmp_path, kind="device"))
    assert measured_watts(tmp_path) == [300.0, 301.0, 302.0, 303.0, 304.0]
    assert plot_devices(tmp_path / "devices.png", entries).stat().st_size > 5000
    assert plot_devices(tmp_path / "none.png", [{"step": 0}]) is None
