"""The rate rises to 1, stays in bounds, moves without jumps, and ends exactly at its floor."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.plan import Rate
from stepladder.plan.learning_rate import scale_rate

from . import strategies as some


@given(some.rates)
def test_a_rate_reads_back(rate):
    assert Rate.parse(str(rate)) == rate


@given(some.rates, st.data())
def test_the_factor_stays_above_nothing_and_at_most_one(rate, data):
    step = data.draw(st.integers(0, max(rate.steps, 2000)))
    factor = rate.factor(step)
    assert 0 <= factor <= 1
    if rate.kind == "constant" or step < rate.steps or rate.floor:
        assert factor > 0


@given(some.rates)
def test_the_last_step_is_at_the_floor_and_stays_there(rate):
    end = 1.0 if rate.kind == "constant" else rate.floor
    last = max(rate.steps, rate.warmup)
    assert rate.factor(last) == rate.factor(last + 1000) == end


@given(some.rates)
def test_the_top_is_exactly_one(rate):
    top = rate.warmup - 1 if rate.warmup else 0
    assert rate.factor(top) == 1.0
    assert rate.factor(rate.warmup) == 1.0


@given(some.rates.filter(lambda rate: rate.steps))
def test_the_factor_rises_then_falls_and_never_jumps(rate):
    factors = [rate.factor(step) for step in range(rate.steps + 1)]
    rise, fall = factors[: rate.warmup], factors[rate.warmup :]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    decaying = rate.steps - rate.warmup
    if rate.kind == "wsd":
        decaying = max(min(round(rate.decay * rate.steps), decaying), 1)
    steepest = 1.6 if rate.kind == "cosine" else 1.0  # half of pi, a little over
    limit = steepest / decaying + 1e-9
    assert all(before - after <= limit for before, after in pairwise(fall))


def test_warm_up_learns_from_the_first_step():
    assert [Rate(warmup=4).factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_wsd_is_flat_until_its_decay():
    rate = Rate.parse("wsd steps=100 decay=0.2 floor=0.1")
    assert [rate.factor(step) for step in (0, 80, 90, 100)] == [1.0, 1.0, 0.55, 0.1]


def test_cosine_is_half_way_down_in_the_middle():
    assert Rate.parse("cosine steps=100").factor(50) == pytest.approx(0.5)


def test_linear_falls_evenly():
    rate = Rate.parse("linear steps=4")
    assert [rate.factor(step) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_no_text_is_a_constant_rate():
    assert Rate.parse("") == Rate()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosin", "rate: 'cosin' is not a schedule. Did you mean 'cosine'?"),
        ("cosine step=5", "rate: 'step' is not a setting. Did you mean 'steps'?"),
        ("cosine steps=5.5", "rate.steps: '5.5' is not a whole number of 0 or more. Write one."),
        ("cosine steps=-1", "rate.steps: '-1' is not a whole number of 0 or more. Write one."),
        ("cosine steps=²", "rate.steps: '²' is not a whole number of 0 or more. Write one."),
        ("linear steps=5 floor=2", "rate.floor: '2' is not a share from 0 to 1. Write one."),
        ("linear steps=5 floor=nan", "rate.floor: 'nan' is not a share from 0 to 1. Write one."),
        (
            "cosine warmup=10 steps=10",
            "rate.steps: cosine over 10 steps with 10 of warm-up leave none to decay. "
            "Write steps=11 or more.",
        ),
    ],
)
def test_a_mistake_is_named(text, message):
    with pytest.raises(PlanError) as caught:
        Rate.parse(text)
    assert str(caught.value) == message


def test_the_rate_follows_the_batch():
    assert scale_rate(0.1, batch=64, reference=16, rule="linear") == pytest.approx(0.4)
    assert scale_rate(0.1, batch=64, reference=16, rule="sqrt") == pytest.approx(0.2)
    assert scale_rate(0.1, batch=64, reference=16, rule="none") == 0.1


def test_an_unknown_scaling_rule_names_the_nearest():
    with pytest.raises(PlanError) as caught:
        scale_rate(0.1, batch=1, reference=1, rule="linaer")
    assert str(caught.value) == (
        "rate.scale: 'linaer' is not a scaling rule. Did you mean 'linear'?"
    )


def test_scaling_needs_both_batches():
    with pytest.raises(PlanError) as caught:
        scale_rate(0.1, batch=8, reference=0, rule="linear")
    assert str(caught.value) == "rate.scale: batch 8 and reference 0 must be 1 or more. Set both."
