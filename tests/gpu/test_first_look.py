"""The first look at a GPU: at most ten seconds, kept, and enough to forecast a step's time."""

import time

import pytest
import torch

import stepladder as sl
from stepladder.calibrate import first_look, speeds_here
from stepladder.record import load_calibration

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def first_time(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STEPLADDER_PROBE", raising=False)
    monkeypatch.setattr(first_look, "MEASURED", {})
    monkeypatch.setattr(first_look, "load_and_cores", lambda: (0.0, 1))
    monkeypatch.setattr(first_look, "disagreement", lambda found, device: "")


def test_a_first_look_takes_ten_seconds_and_times_every_usual_type(first_time, capsys):
    device = torch.device("cuda", 0)
    torch.zeros(1, device=device)
    before, began = torch.cuda.get_rng_state(), time.monotonic()
    found = speeds_here(device)
    took = time.monotonic() - began
    assert took < 12, f"{took:.1f} s"
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert "for the first time" in capsys.readouterr().err
    if first_look.slowness(found):
        pytest.skip("others are using this GPU")
    assert {"bf16", "tf32", "fp32"} <= set(found.matrix_flops_per_second)
    assert found.bandwidth_bytes_per_second > 1e11 and found.launch_seconds > 1e-7
    assert found.optimizer_bytes_per_second > 1e11 and found.attention_flops_per_second
    again = time.monotonic()
    assert speeds_here(device) == found and time.monotonic() - again < 1
    assert load_calibration(found.device) == found


def test_what_it_found_forecasts_a_step_of_this_machine(first_time):
    if first_look.slowness(speeds_here(torch.device("cuda", 0))):
        pytest.skip("others are using this GPU")
    planned = sl.plan("gpt2", "here", plan="bf16 micro=8", batch=8)
    assert planned.forecast.time is not None and planned.forecast.mfu > 0.05
