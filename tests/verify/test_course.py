"""Courses: which numbers are filled in, and what cannot be compared."""

import pytest
from torch import nn

from stepladder.errors import PlanError
from stepladder.verify import Subject, find_subject
from stepladder.verify.course import has_batch_statistics, make_course

SUBJECT = find_subject("mlp-tiny")
NORMALISED = find_subject("resnet-tiny")


def course(plan, optimizer="sgd lr=0.1", subject=SUBJECT):
    return make_course(subject, plan, optimizer, steps=2)


def test_open_numbers_are_filled_in():
    plan = course("fp32 ddp").plan
    assert plan.layout.num_ranks == 2 and (plan.batch.sequences, plan.batch.micro) == (16, 2)
    assert course("fp32 zero3 shard=8 micro=3").plan.batch.sequences == 24
    assert course("fp32 ddp micro=1 accumulate=5").plan.batch.sequences == 10
    assert course("fp32 zero3 tensor=2").name == "fp32 zero3 shard=2 tensor=2"


def test_batch_statistics_are_not_cut_unless_the_plan_asks_for_it():
    assert course("fp32 ddp", subject=NORMALISED).plan.batch.micro == 8
    assert course("fp32 ddp batch=4", subject=NORMALISED).plan.batch.micro == 2
    assert course("fp32 ddp micro=2", subject=NORMALISED).plan.batch.micro == 2


def test_only_statistics_of_a_batch_in_training_count():
    def subject(module):
        return Subject("net", lambda: (module, [], None))

    assert has_batch_statistics(subject(nn.Sequential(nn.BatchNorm1d(2))))
    assert has_batch_statistics(subject(nn.Sequential(nn.BatchNorm1d(2)).eval())), "is trained"
    assert not has_batch_statistics(subject(nn.Sequential(nn.BatchNorm1d(2).eval())))
    assert not has_batch_statistics(subject(nn.Sequential(nn.LayerNorm(2))))


def test_what_sends_less_than_the_gradients_is_not_compared():
    with pytest.raises(PlanError, match="cannot compute the same"):
        course("fp32 ddp compress=powersgd:2")
