"""A run goes on exactly from what its module and its loss hold outside of any state_dict."""

import pytest
import torch

from stepladder.train import climb
from stepladder.train.checkpointing.attribute_values import capture, give_back, mark
from tests.ranks import run as on_ranks
from tests.train.checkpointing.state_in_attributes import (
    KINDS,
    Counter,
    Generators,
    Iterates,
    batches,
    made,
    named,
)
from tests.train.checkpointing.state_in_attributes import kind_name as name_of

SGD = "sgd lr=0.1"


def start(kind, loss, plan="fp32"):
    return climb(made(kind), loss=loss(), optimizer=SGD, plan=plan, device="cpu")


def train(taken, given):
    return [taken.step(batch, rows="rank").loss for batch in given]


def bits(taken):
    return [p.detach().clone() for p in taken.module.parameters()]


@pytest.mark.parametrize(("kind", "loss"), KINDS, ids=name_of)
def test_a_run_goes_on_as_if_it_had_not_stopped(kind, loss, tmp_path):
    whole = start(kind, loss)
    losses = train(whole, batches())
    first = start(kind, loss)
    before = train(first, batches()[:3])
    first.save(tmp_path)
    after = start(kind, loss)
    after.resume(tmp_path)
    assert before + train(after, batches()[3:]) == losses
    assert all(map(torch.equal, bits(after), bits(whole)))
    assert not [event for event in after.events if "attribute" in event]


def on_this_rank(folder):
    whole = start(Generators, named, "fp32 ddp")
    losses = train(whole, batches())
    first = start(Generators, named, "fp32 ddp")
    first.module.numpy.random(first.world.place.rank)  # ranks draw otherwise from here on
    before = train(first, batches()[:3])
    first.save(folder)
    going_on = train(first, batches()[3:])
    after = start(Generators, named, "fp32 ddp")
    after.resume(folder)
    return losses != before + going_on, train(after, batches()[3:]) == going_on


def test_each_rank_goes_on_from_its_own(tmp_path):
    assert on_ranks(on_this_rank, 2, tmp_path) == [(True, True)] * 2


def test_what_nobody_can_store_is_told_once(tmp_path):
    taken = start(Iterates, named)
    taken.save(tmp_path / "new")
    assert taken.events == []  # nothing was taken of it yet
    train(taken, batches(2))
    taken.save(tmp_path)
    taken.save(tmp_path)
    (said,) = taken.events
    assert said.startswith("the attribute 'numbers' changes in training and no checkpoint can hold")
    assert "a range_iterator" in said and "get_extra_state" in said


def test_an_older_checkpoint_leaves_what_it_does_not_hold_and_says_so(tmp_path):
    taken = start(Counter, named)
    taken.save(tmp_path)
    train(taken, batches(2))
    taken.load(tmp_path)
    assert taken.module.calls == 2
    assert [event for event in taken.events if "'calls'" in event] == [
        "no attribute 'calls' is in the checkpoint, and it has changed: it stays so"
    ]


def test_a_value_given_back_is_the_same_object_filled():
    held = {"a": [torch.ones(2)], "b": Generators().numpy}
    data, same = capture(held), (held, held["a"], held["a"][0], held["b"])
    number = held["b"].random()
    before = mark(held)
    held["a"][0] += 1
    held["a"].append(3)
    assert mark(held) != before and mark(held) == mark(held)
    back = give_back(held, data, torch.device("cpu"))
    assert all(x is y for x, y in zip((back, back["a"], back["a"][0], back["b"]), same))
    assert len(back["a"]) == 1 and torch.equal(back["a"][0], torch.ones(2))
    assert back["b"].random() == number
