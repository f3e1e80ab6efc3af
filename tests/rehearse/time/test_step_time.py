"""The door: a module's step time by its operations, beside the planner's formulas."""

from functools import cache

import pytest
import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.model import build
from stepladder.planner import forecast
from stepladder.record import Calibration
from stepladder.rehearse import rehearse_time

WORDS = "gpt:layers=1,hidden=512,heads=8,vocab=2048,sequence=256"


@cache
def found_for(plan, rows, calibration=None):
    with torch.device("meta"):
        model = build(WORDS)
    return rehearse_time(
        model, plan, sample=words(rows), loss="cross_entropy", on="1 x H200",
        calibration=calibration and Calibration(**dict(calibration)),
    )  # fmt: skip


def words(rows):
    tokens = torch.randint(0, 2048, (rows, 257))
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize("plan", ["bf16 micro=64", "bf16 recompute=blocks micro=64"])
def test_a_large_step_is_worth_what_the_formulas_say(plan):
    """They count the same work in other ways: parts by their costs, and a step's operations."""
    found = found_for(plan, 64)
    said = forecast(WORDS, plan, "1 x H200").time
    device = said.step_seconds - said.host
    assert found.device_seconds == pytest.approx(device, rel=0.25)
    # Products among other work run at a higher clock than those one after another.
    assert 0.6 * said.matrix < found.time.matrix < said.matrix
    # The kernels compute whole tiles, and begin and end each: the formulas count neither.
    assert found.time.attention == pytest.approx(attention_by_hand(plan), rel=0.02)
    assert said.attention < found.time.attention < 2.5 * said.attention
    assert found.step_seconds in found.interval


def attention_by_hand(plan):
    """Seconds of 64 rows of 256 tokens in 8 causal heads of 64, on an H200 that nobody measured."""
    keys = (256 + 128) / 2 + 145
    forward = 4 * 64 * 8 * 256 * keys * 64
    rate = 1.5 * 0.36 * 989.4e12 * 1.5 / 2.0  # heads of 64 wait for their exponentials
    passes = 2 if "recompute" in plan else 1
    moved = 8 * 2 * 64 * 8 * 256 * 64  # bytes, by kernels around the backward one
    kernels = (passes + 1) * 3e-6
    return (passes + 2.5) * forward / rate + moved / (0.91 * 4.8e12) + kernels


def test_a_step_that_waits_for_its_host_takes_as_long_as_asking():
    found = found_for("bf16", 1)
    assert found.step_seconds == pytest.approx(found.host_seconds, rel=0.05)
    assert found.device_seconds < 0.5 * found.host_seconds and found.time.host > 0
    late = found_for("bf16", 1, (("device", "H200"), ("launch_seconds", 24e-6)))
    assert late.step_seconds == pytest.approx(2 * found.step_seconds, rel=0.05)


def test_a_compiled_step_asks_for_fewer_kernels_and_moves_less():
    plain, made = (found_for(plan, 64) for plan in ("bf16 micro=64", "bf16 compile=on micro=64"))
    assert made.kernels < 0.85 * plain.kernels
    assert plain.time.matrix < made.time.matrix < 1.2 * plain.time.matrix  # fewer watts spared
    assert made.time.memory_bound < 0.7 * plain.time.memory_bound


def test_a_card_of_unknown_speed_is_refused_and_a_calibration_makes_it_known():
    cluster = Cluster.parse("1 x CPU")
    layer, batch = nn.Linear(64, 8), (torch.randn(8, 64), torch.randint(0, 8, (8,)))
    given = {"sample": batch, "loss": "cross_entropy", "on": cluster}
    with pytest.raises(PlanError, match="the speed of CPU is not known"):
        rehearse_time(layer, "fp32", **given)
    rates = {"fp32": 1e11, "bf16": 1e11, "fp16": 1e11}
    known = Calibration("CPU", rates, bandwidth_bytes_per_second=1e10, launch_seconds=1e-5)
    found = rehearse_time(layer, "fp32", **given, calibration=known)
    assert found.step_seconds > 1e-5 * found.kernels / 2
