"""`sl.forecast(..., rehearse=True)`: a forecast like any other, of the step itself."""

import pytest
import torch
from torch import nn

import stepladder as sl
from stepladder.errors import PlanError
from stepladder.rehearse import rehearse, rehearse_time


def case():
    batch = torch.zeros(64, 16), torch.zeros(64, dtype=torch.long)
    return nn.Sequential(nn.Linear(16, 512), nn.GELU(), nn.Linear(512, 4)), batch


def test_a_module_is_forecast_by_its_own_step():
    module, batch = case()
    said = sl.forecast(
        module, "bf16", "1 x H200", sample=batch, loss="cross_entropy", rehearse=True
    )
    found = rehearse(module, "bf16", sample=batch, loss="cross_entropy")
    assert said.rehearsal.memory == found.memory and said.fits and said.changes == ()
    assert said.memory.reserved_bytes == found.reserved_bytes
    assert said.memory.peak_bytes == found.reserved_bytes + said.memory.context
    formula = sl.forecast(sl.describe(module, sample=batch), "bf16 micro=64 batch=64", "1 x H200")
    assert formula.rehearsal is None and formula.plan == said.plan
    assert said.memory.context == formula.memory.context > 0
    assert said.time != formula.time  # by the operations that run
    assert said.to_dict()["rehearsal"]["phase"] == found.phase


def test_what_does_not_fit_says_where_and_what_frees_how_much():
    module, (inputs, targets) = case()
    sample = inputs.repeat(64, 1), targets.repeat(64)
    said = sl.forecast(
        module, "fp32 micro=2097152 batch=2097152 memory=1GiB", "1 x H100-80GB",
        sample=sample, loss="cross_entropy", rehearse=True,
    )  # fmt: skip
    assert not said.fits
    assert "can be used. It ends in " in said.reasons[0]
    assert said.changes and said.changes[0].freed_bytes > 0
    assert " (frees " in str(said.changes[0]) and said.to_dict()["changes"][0]["freed_bytes"] > 0


def test_a_step_of_many_micro_batches_is_rehearsed_by_a_few():
    module, batch = case()
    said = {"sample": batch, "loss": "cross_entropy", "device": "cpu"}
    few, many = (rehearse(module, f"fp32 micro=2 batch={rows}", **said) for rows in (8, 2048))
    more = (2048 - 8) * (16 * 4 + 8)  # the batch's own bytes, and nothing else
    assert many.allocated_bytes - few.allocated_bytes == pytest.approx(more, rel=0.02)
    assert many.memory.gradients == few.memory.gradients
    times = [
        rehearse_time(module, f"bf16 micro=2 batch={rows}", on="1 x H200", **batch_and_loss(batch))
        for rows in (6, 8, 10, 2048)
    ]
    each = times[1].step_seconds - times[0].step_seconds
    assert times[2].step_seconds - times[1].step_seconds == pytest.approx(each, rel=0.01)
    assert times[3].step_seconds == pytest.approx(times[0].step_seconds + 1021 * each, rel=0.01)


def batch_and_loss(batch):
    return {"sample": batch, "loss": "cross_entropy"}


@pytest.mark.soak
def test_a_named_model_on_several_devices_has_the_formulas_time():
    said = sl.forecast("gpt-tiny", "bf16 zero3 micro=1", "2 x H100-80GB", rehearse=True)
    formula = sl.forecast("gpt-tiny", "bf16 zero3 micro=1", "2 x H100-80GB")
    assert said.rehearsal.ranks == 2 and said.time == formula.time
    assert said.plan == formula.plan and said.memory != formula.memory


def test_what_is_no_step_is_refused_in_one_line():
    module, batch = case()
    facts = sl.describe(module, sample=batch)
    for given, more, words in (
        (facts, {}, "model: a Facts has no step to rehearse. Give the module"),
        (module, {}, "sample: is None, and a rehearsed step needs a batch"),
        ("gpt-tiny", {"sample": batch}, "sample: is for a module of your own, and gpt-tiny is"),
        ("gpt-tiny", {"loss": "mse"}, "loss: is for a module of your own, and gpt-tiny is"),
    ):
        with pytest.raises(PlanError, match=words):
            sl.forecast(given, "bf16", "1 x H200", rehearse=True, **more)
    with pytest.raises(PlanError, match="loss: is for a step that is rehearsed, and formulas"):
        sl.forecast(facts, "bf16", "1 x H200", loss="cross_entropy")
