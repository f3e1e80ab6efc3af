"""A recipe tried in two precisions, as a program asks for it."""

import pytest

from stepladder.job.precision_trial import try_precisions
from stepladder.plan import Precision, read_recipe

SETTINGS = [
    "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "16",
    "--train.batch", "4", "--train.steps", "3", "--train.evaluate_batches", "1",
    "--train.device", "cpu",
]  # fmt: skip
RECIPE = read_recipe(None, SETTINGS)


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


def test_advice_under_bf16_weights_names_the_layers_and_is_silent_once_followed():
    fp32, pure = Precision.parse("fp32"), Precision.parse("bf16-pure")
    slow = [*SETTINGS, "--optimizer.lr", "1e-4"]
    found = try_precisions(read_recipe(None, slow), fp32, pure, gradients=True)
    (first, *_) = found.advice
    name = first.partition(":")[0]
    assert "updates are under half a bf16 step" in first and f"keep=fp32:{name}" in first
    kept = read_recipe(None, [*slow, "--plan.keep", f"fp32:{name}"])
    after = try_precisions(kept, fp32, pure, gradients=True)
    assert not any(sentence.startswith(f"{name}:") for sentence in after.advice)


def test_fewer_bytes_of_state_are_for_the_precision_that_keeps_masters():
    recipe = read_recipe(None, [*SETTINGS, "--plan.state", "7"])
    found = try_precisions(recipe, Precision.parse("fp32"), Precision.parse("bf16-master"))
    one, other = found.comparison.runs
    assert one.losses == pytest.approx(other.losses, rel=0.01) and one != other
