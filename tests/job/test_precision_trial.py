"""A recipe tried in two precisions, as a program asks for it."""

import pytest

from stepladder.job.precision_trial import try_precisions
from stepladder.plan import Precision, read_recipe

RECIPE = read_recipe(None, [
    "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "16",
    "--train.batch", "4", "--train.steps", "3", "--train.evaluate_batches", "1",
    "--train.device", "cpu",
])  # fmt: skip


def test_a_precision_compared_with_itself_is_the_same_to_the_bit():
    fp32 = Precision.parse("fp32")
    found = try_precisions(RECIPE, fp32, fp32, operations=True, gradients=True)
    one, other = found.comparison.runs
    assert one == other and len(one.losses) == 3 and found.comparison.parted_at is None
    assert not found.comparison.verdict.failed
    assert found.operations and found.gradients


def test_what_is_not_asked_for_is_not_measured():
    fp32 = Precision.parse("fp32")
    found = try_precisions(RECIPE, fp32, fp32)
    assert found.operations == () and found.gradients == () and found.advice == ()


def test_fp16_gradients_are_those_of_the_loss_and_not_of_the_scaled_one():
    fp32, fp16 = Precision.parse("fp32"), Precision.parse("fp16")
    rows = [try_precisions(RECIPE, fp32, other, gradients=True).gradients for other in (fp32, fp16)]
    for plain, scaled in zip(*rows, strict=True):
        assert plain.norm == pytest.approx(scaled.norm, rel=0.05)
        assert scaled.lost_bf16 is not None
