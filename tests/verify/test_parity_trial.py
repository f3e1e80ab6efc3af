"""Courses: what is filled in, what the plain run leaves out, what cannot be compared."""

import pytest

from stepladder.errors import NonFinite, PlanError
from stepladder.verify import find_subject
from stepladder.verify.parity_trial import learn_plain, make_course, plain_of

SUBJECT = find_subject("mlp-tiny")


def course(plan, optimizer="sgd lr=0.1"):
    return make_course(SUBJECT, plan, optimizer, steps=2)


def test_open_numbers_are_filled_in():
    plan = course("fp32 ddp").plan
    assert plan.layout.num_ranks == 2 and (plan.batch.sequences, plan.batch.micro) == (16, 2)
    assert course("fp32 zero3 shard=8 micro=3").plan.batch.sequences == 24
    assert course("fp32 ddp micro=1 accumulate=5").plan.batch.sequences == 10
    assert course("fp32 zero3 tensor=2").name == "fp32 zero3 shard=2 tensor=2"


def test_the_plain_run_keeps_the_mathematics_and_nothing_else():
    asked = course("bf16 keep=fp32:head zero3 tensor=2 recompute=blocks compile=on")
    assert str(plain_of(asked)) == ("bf16 batch=16 micro=2 keep=fp32:head 'optimizer=sgd lr=0.1'")


def test_what_sends_less_than_the_gradients_is_not_compared():
    with pytest.raises(PlanError, match="cannot compute the same"):
        course("fp32 ddp compress=powersgd:2")


def test_a_run_that_stands_still_proves_nothing(tmp_path):
    with pytest.raises(NonFinite, match="moved no parameter in 2 steps"):
        learn_plain(course("fp32 ddp", "sgd lr=0"), tmp_path / "w.pt")
