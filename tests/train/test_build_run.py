"""A run refuses what its plan says of a module that has no such thing."""

import pytest
import torch

import stepladder as sl
from stepladder.errors import PlanError


def start(plan, **how):
    return sl.climb(torch.nn.Linear(4, 3), loss="cross_entropy", plan=plan, device="cpu", **how)


def test_a_group_in_a_plan_must_match_a_parameter():
    words = "fp32 'optimizer=sgd lr=0.1 group=*.bais:wd=0'"
    with pytest.raises(PlanError, match=r"'\*\.bais' matches none of 2 parameters"):
        start(words)


def test_a_batch_that_is_no_step_of_so_many_micro_batches_is_refused():
    run = start("fp32 micro=2 accumulate=3")
    batch = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    with pytest.raises(PlanError) as raised:
        run.step(batch)
    assert str(raised.value) == (
        "batch.accumulate: 3 micro-batches of 2 x 1 data ranks make 6, and the batch has 8 rows. "
        "Use accumulate=4 or leave it out."
    )
    for rows in (6, 5):
        assert run.step((batch[0][:rows], batch[1][:rows])).loss > 0
