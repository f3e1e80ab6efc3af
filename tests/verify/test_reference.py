"""The reference of a proof: what it depends on, what it keeps, what proves nothing."""

import math

import pytest
import torch
from torch import nn

from stepladder.errors import NonFinite
from stepladder.verify import Subject, find_subject
from stepladder.verify.course import make_course
from stepladder.verify.reference import distance, learn_plain, reference_key, start_reference

SUBJECT = find_subject("mlp-tiny")


def course(plan, optimizer="sgd lr=0.1", subject=SUBJECT):
    return make_course(subject, plan, optimizer, steps=2)


def test_a_reference_depends_on_the_mathematics_alone():
    one = course("bf16 keep=fp32:head zero3 tensor=2 recompute=blocks compile=on batch=16")
    other = course("bf16 keep=fp32:head ddp replicate=4 micro=1 batch=16")
    assert reference_key(one) == reference_key(other)
    assert reference_key(course("fp32 ddp")) != reference_key(course("bf16 ddp"))
    assert reference_key(course("fp32 batch=8")) != reference_key(course("fp32 batch=16"))


def test_the_batch_is_never_cut():
    seen = []
    module = nn.Linear(3, 2)
    module.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    rows = [(torch.randn(3), torch.tensor(1)) for _ in range(32)]
    subject = Subject("linear", lambda: (module, rows, "cross_entropy"))
    _, steps = start_reference(course("fp32 ddp micro=2 batch=16", subject=subject))
    assert len(list(steps)) == 2 and seen == [16, 16]


def test_a_run_that_stands_still_proves_nothing(tmp_path):
    with pytest.raises(NonFinite, match="moved no parameter in 2 steps"):
        learn_plain(course("fp32 ddp", "sgd lr=0"), tmp_path / "w.pt")


def test_state_is_kept_with_how_far_each_buffer_went(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    module.register_buffer("mask", torch.tensor([-math.inf, 1.0]))
    module.register_buffer("cache", torch.zeros(2), persistent=False)
    rows = [(torch.randn(3), torch.tensor(1)) for _ in range(32)]
    subject = Subject("net", lambda: (module, rows, "cross_entropy"))
    found = learn_plain(course("fp32", subject=subject), tmp_path / "w.pt")
    names = {"1.running_mean", "1.running_var", "1.num_batches_tracked", "mask"}
    assert set(found.buffers) == names
    assert found.buffers["1.num_batches_tracked"] == 2.0 and found.buffers["1.running_mean"] > 0
    assert found.buffers["mask"] > 0, "an infinite element does not make it infinite or nothing"
    assert set(torch.load(tmp_path / "w.pt")) == names | found.names


def test_equal_infinities_are_no_distance():
    assert distance(torch.tensor([math.inf, 1.0]), torch.tensor([math.inf, 1.0])) == 0.0
    assert distance(torch.tensor([1j, 1.0]), torch.tensor([0j, 1.0])) == 1.0
    assert math.isnan(distance(torch.tensor([math.nan]), torch.tensor([0.0])))
