"""A replayed certificate: identical bits, the same within tolerance, or different and where."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from stepladder.errors import RecordError
from stepladder.verify.certificate.certificate import Certificate, Fingerprint
from stepladder.verify.certificate.certify import certify, named_subject
from stepladder.verify.certificate.record_run import fingerprint, made_with, record_run
from stepladder.verify.certificate.replay import (
    Replay,
    Replayed,
    away,
    course_of,
    other_than,
    replay,
    replay_run,
)
from stepladder.verify.course import make_course
from stepladder.verify.live_module import live_subject
from tests.ranks import POOL


def net(width=6):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


BATCH = (
    torch.randn(8, 4, generator=torch.Generator().manual_seed(0)),
    torch.randint(0, 2, (8,), generator=torch.Generator().manual_seed(1)),
)


@pytest.fixture(scope="module")
def course():
    subject = live_subject(net, BATCH, "cross_entropy")
    return make_course(subject, "fp32 zero3 batch=8 micro=2", "sgd lr=0.1", steps=2)


@pytest.fixture(scope="module")
def told(course):
    return record_run(POOL, course, "same")


def edited(run, step, name=None, *, loss=None, moved=0.0):
    """A run of which one number, or one parameter, is said to have been another."""
    steps = list(run.steps)
    before = steps[step]
    tensors = dict(before.tensors)
    if name:
        first, last = run.first[name].sketch, tensors[name].sketch
        sketch = tuple(b + moved * (b - a) for a, b in zip(first, last))
        tensors[name] = Fingerprint("0" * 32, sketch)
    steps[step] = replace(before, tensors=tensors, loss=before.loss if loss is None else loss)
    return replace(run, steps=tuple(steps))


def test_a_run_repeats_to_the_bit(course, told):
    assert set(told.steps[0].tensors) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert told.steps[0].tensors != told.steps[1].tensors
    found = replay_run(POOL, told, course)
    assert (found.verdict, str(found)) == (
        "identical bits",
        "fp32 zero3 shard=2 batch=8 micro=2 (sgd lr=0.1): identical bits over 2 steps",
    )


@pytest.mark.parametrize(
    ("change", "verdict", "where"),
    [
        ({"name": "2.weight", "moved": 1e-6}, "the same within tolerance", (1, "2.weight")),
        ({"name": "2.weight", "moved": 0.01}, "DIFFERENT", (1, "2.weight")),
        ({"name": "0.bias", "moved": float("nan")}, "DIFFERENT", (1, "0.bias")),
        ({"loss": 5.0}, "DIFFERENT", (1, "loss")),
        ({"loss": float("nan"), "name": "0.bias", "moved": 1e-6}, "DIFFERENT", (1, "loss")),
    ],
)
def test_a_forged_number_is_found_by_the_replay(course, told, change, verdict, where):
    found = replay_run(POOL, edited(told, 1, **change), course)
    assert (found.verdict, (found.step, found.tensor)) == (verdict, where)
    assert f"step 1, {where[1]}" in str(found)


def test_another_buffer_is_found_too():
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    course = make_course(
        live_subject(module, BATCH, "cross_entropy"), "fp32", "sgd lr=0.1", steps=2
    )
    told = record_run(POOL, course, "same")
    assert replay_run(POOL, told, course).verdict == "identical bits"
    found = replay_run(POOL, edited(told, 1, "1.running_mean", moved=0.1), course)
    assert (found.verdict, found.step, found.tensor) == ("DIFFERENT", 1, "1.running_mean")


def test_another_module_and_other_weights_are_refused(course, told):
    draw = partial(make_course, plan=course.plan, optimizer="sgd lr=0.1", steps=2)
    other = draw(live_subject(nn.Linear(4, 2), BATCH, "cross_entropy"))
    with pytest.raises(RecordError, match="is of another module: '0.bias'"):
        replay_run(POOL, told, other)
    torch.manual_seed(7)
    with pytest.raises(RecordError, match="is of other first weights: '0.weight' begins"):
        replay_run(POOL, told, draw(live_subject(net(), BATCH, "cross_entropy")))


def test_what_is_another_here_is_named(told):
    here = made_with("cpu")
    assert other_than(Certificate("Net", {}, here, (told,))) == ()
    old = Certificate("Net", {}, {**here, "torch": "2.0.0"}, (told,))
    assert other_than(old) == (f"torch (2.0.0; here {torch.__version__})",)
    row = Replayed("fp32", "sgd", "the same within tolerance", 2, 1, "loss", 1e-7)
    shown = " ".join(str(Replay("Net", (row,), other_than(old))).split())
    assert "other bits from step 1, loss on, off by 1.0e-07" in shown
    assert f"Made with another torch (2.0.0; here {torch.__version__})." in shown


def test_a_sketch_tells_how_far_tensors_are_apart():
    draw = torch.Generator().manual_seed(0)
    one = torch.randn(4000, generator=draw)
    for size in (1e-6, 1e-2):
        moved = one + size * torch.randn(4000, generator=draw)
        found = away(fingerprint(one).sketch, fingerprint(moved).sketch)
        assert 0.3 < found / (moved - one).norm().item() < 3
    assert fingerprint(one).hash != fingerprint(one.view(2, 2000)).hash


def test_what_cannot_be_certified_or_replayed_is_refused_in_a_line(course, told, tmp_path):
    with pytest.raises(RecordError, match="none of the 1 runs could be taken"):
        certify("Net", [course], ["refused"])
    with pytest.raises(RecordError, match="holds no run that could be replayed"):
        replay(Certificate("Net", {}, {}, ()), course.subject)
    with pytest.raises(RecordError, match="a module that no text names"):
        named_subject(Certificate("Net", {}, {}, (told,)), tmp_path / "proof.json")
    with pytest.raises(RecordError, match="this stepladder cannot read its plan 'warp=9'"):
        course_of(replace(told, plan="warp=9"), course.subject)
