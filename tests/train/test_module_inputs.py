"""A module is given of a batch what its forward takes, and the loss the labels or all of a dict."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stepladder as sl
from stepladder.errors import DataError
from tests.ranks import run as on_ranks
from tests.train.toys import distance, net, pairs

STEPS = 3


class Named(nn.Module):
    """Takes entries of a dict by their names."""

    def __init__(self):
        super().__init__()
        self.inner = net(1)

    def forward(self, x, mask=None):
        return self.inner(x)


class WholeDict(Named):
    def forward(self, batch):
        return self.inner(batch["seen"]["x"])


class AnyWords(Named):
    def forward(self, x, **others):
        self.given = set(others)
        return self.inner(x)


def by_label(outputs, batch):
    """A loss of outputs and the whole batch, as people write it in a loop."""
    return F.cross_entropy(outputs, batch["label"])


WAYS = {
    "labels": (Named, "cross_entropy", lambda x, y: {"x": x, "labels": y}),
    "names of samples": (
        Named, "cross_entropy", lambda x, y: {"x": x, "labels": y, "name": ["a"] * len(x)},
    ),
    "a loss of the batch": (Named, by_label, lambda x, y: {"x": x, "label": y, "id": "one"}),
    "a dict in one piece": (
        WholeDict, by_label, lambda x, y: {"seen": {"x": x}, "label": y, "name": ["a"] * len(x)},
    ),
    "a pair of a dict": (
        WholeDict, "cross_entropy", lambda x, y: ({"seen": {"x": x}, "name": ["a"] * len(x)}, y),
    ),
}  # fmt: skip


def trained(way, plan="fp32", **how):
    kind, loss, make = WAYS[way]
    run = sl.climb(kind(), loss=loss, optimizer="sgd lr=0.5", plan=plan, device="cpu", **how)
    for x, y in pairs(STEPS):
        run.step(make(x, y), rows="global").read()
    return run


def wanted():
    module = net(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for x, y in pairs(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module


@pytest.mark.parametrize("way", WAYS)
def test_a_dict_trains_as_in_a_plain_loop(way):
    for plan in ("fp32", "fp32 micro=2"):
        assert distance(trained(way, plan).module.inner, wanted()) < 1e-5


def on_two(plan):
    return [distance(trained(way, plan).module.inner, wanted()) for way in WAYS]


def test_ranks_train_as_a_plain_loop():
    for found in on_ranks(on_two, 2, "fp32 ddp", init=False):
        assert max(found) < 1e-5


def test_a_dict_is_sampled_evaluated_and_predicted():
    kind, loss, make = WAYS["a loss of the batch"]
    batch = make(*pairs(1)[0])
    run = sl.climb(kind(), loss=loss, plan="auto", sample=batch, device="cpu")
    with torch.no_grad():
        outputs = run.module.inner(batch["x"])
    metrics = {"accuracy": lambda o, t: (o.argmax(1) == t["label"]).float().mean()}
    found = run.evaluate([batch], metrics=metrics)
    assert found.loss == pytest.approx(by_label(outputs, batch).item(), rel=1e-5)
    assert found["accuracy"] == metrics["accuracy"](outputs, batch).item()
    assert torch.allclose(run.predict([batch]), outputs, atol=1e-6)


def test_what_nobody_is_given_is_told_once():
    told = "batch: Named.forward takes no 'name', and is given the rest"
    assert trained("names of samples").events.count(told) == 1
    for way in ("labels", "a loss of the batch", "a dict in one piece"):
        assert not any("takes no" in event for event in trained(way).events)


def test_a_forward_that_takes_any_word_is_given_them_all():
    run = sl.climb(AnyWords(), loss=by_label, plan="fp32", device="cpu")
    x, y = pairs(1)[0]
    run.step({"x": x, "label": y, "more": y}).read()
    assert run.module.given == {"label", "more"}


def test_a_dict_without_what_forward_needs_is_refused():
    class Two(Named):
        def forward(self, x, mask):
            return self.inner(x)

    run = sl.climb(Two(), loss="cross_entropy", plan="fp32", device="cpu")
    x, y = pairs(1)[0]
    with pytest.raises(DataError, match="Two does not take its inputs.*'mask'"):
        run.step({"x": x, "labels": y, "other": y})


def test_a_flag_may_judge_every_row():
    """As a GAN's loss is told whether rows are real."""

    def judged(outputs, real):
        return F.binary_cross_entropy_with_logits(outputs, real.expand_as(outputs))

    x, _ = pairs(1)[0]
    losses = [
        sl.climb(net(1), loss=judged, plan=plan, device="cpu").step((x, torch.tensor(1.0))).loss
        for plan in ("fp32", "fp32 micro=2")
    ]
    assert losses[0] == pytest.approx(judged(net(1)(x), torch.tensor(1.0)).item(), rel=1e-6)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_samples_in_the_place_of_batches_are_refused():
    run = sl.climb(net(1), loss="cross_entropy", plan="fp32", device="cpu")
    samples = list(zip(*pairs(1)[0]))
    said = "batch: its target is one integer for inputs of 16 rows"
    for data in (samples, DataLoader(samples, batch_size=None)):
        with pytest.raises(DataError, match=said):
            list(sl.fit(run, data))
