"""Every loss is what a plain loop over whole batches gives, or is refused before the first step."""

import re

import pytest
import torch
from torch import nn

from stepladder.errors import DataError, ModelError
from stepladder.train import climb
from stepladder.verify.reference import whole_parameters
from tests.ranks import run as on_ranks
from tests.train.toys import distance

from .loss_cases import (
    CLASSES,
    FLOATS,
    INPUTS,
    REFUSED,
    SAME,
    Centered,
    detached_divisor,
    net,
    plain_loop,
)

SMOOTH = torch.nn.CrossEntropyLoss(), CLASSES

PLANS = "fp32 replicate=2", "fp32 zero3 shard=2 micro=3", "fp32 pipeline=2 micro=4"


@pytest.mark.parametrize(
    ("name", "micro"), [*((name, 4) for name in SAME), ("own mask", 1), ("class weights", 5)]
)
def test_micro_batches_add_up_to_the_whole_batch(name, micro):
    loss, targets = SAME[name]
    expected, plain = plain_loop(loss, targets)
    module = net()
    run = climb(module, loss=loss, optimizer="sgd lr=0.1", plan=f"fp32 micro={micro}")
    assert [run.step((INPUTS, targets)).loss for _ in range(3)] == pytest.approx(expected, rel=1e-5)
    assert distance(module, plain) < 1e-5


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_pieces_do_not_add_up_to_is_refused_before_the_first_step(name):
    loss, targets = REFUSED[name]
    module = net()
    before = [p.clone() for p in module.parameters()]
    run = climb(module, loss=loss, optimizer="sgd lr=0.1", plan="fp32 micro=4")
    with pytest.raises(ModelError, match=r"loss: is [\d.]+ for 6 rows at once and (\d|nan|inf)"):
        run.step((INPUTS, targets))
    assert all(map(torch.equal, before, module.parameters()))


def refused(loss, targets, plan="fp32 micro=4"):
    run = climb(net(), loss=loss, optimizer="sgd lr=0.1", plan=plan, device="cpu")
    with pytest.raises(ModelError) as raised:
        run.step((INPUTS, targets))
    return str(raised.value)


def test_a_loss_whose_gradient_alone_differs_in_pieces_is_refused():
    assert re.fullmatch(
        r"loss: is the same for 6 rows at once and in pieces of 2 and 4, and its gradient is not: "
        r"it differs by \d\.?\d* of its size\. Do not cut the batch: .*",
        refused(detached_divisor, FLOATS),
    )


def test_means_over_targets_and_over_rows_are_cut_until_a_target_is_left_out():
    loss = SAME["penalty"][0]
    run = climb(net(), loss=loss, optimizer="sgd lr=0.1", plan="fp32 micro=4", device="cpu")
    run.step((INPUTS, CLASSES)).read()
    assert [str(event) for event in run.events] == [
        "loss: is cut into pieces, because every target counts; a batch with a target of -100 will "
        "be refused"
    ]
    before = [p.clone() for p in run.module.parameters()]
    with pytest.raises(DataError) as raised:
        run.step((INPUTS, CLASSES.index_fill(0, torch.tensor([5]), -100)))
    assert str(raised.value).startswith(
        "batch: has a target of -100, for which the loss adds means over different things, so no "
        "weighting of its pieces is right. Do not cut the batch: one rank, "
    )
    assert all(map(torch.equal, before, run.module.parameters()))
    assert run.step((INPUTS, CLASSES)).loss > 0


def refused_on_a_rank(plan):
    """What each step says: the last row alone, which one rank has, lacks a target."""
    padded = CLASSES.index_fill(0, torch.tensor([15]), -100)
    found = []
    for targets in ((padded,), (CLASSES, padded)):
        run = climb(net(), loss=SAME["penalty"][0], optimizer="sgd lr=0.1", plan=plan)
        with pytest.raises(DataError) as raised:
            for each in targets:
                run.step((INPUTS, each), rows="global").read()
        found.append((run.index, str(raised.value)))
    return found


def test_a_target_that_one_rank_must_leave_out_is_refused_on_all():
    one, other = on_ranks(refused_on_a_rank, 2, "fp32 replicate=2")
    assert one == other and [index for index, _ in one] == [0, 1]
    assert all(said.startswith("batch: has a target of -100, for which") for _, said in one)


def test_a_loss_that_changes_a_buffer_in_every_call_is_refused_unless_it_evaluates():
    loss = Centered()
    assert refused(loss, FLOATS).startswith(
        "loss: changes its buffer 'center' in every call, and a batch is computed in pieces."
    )
    assert loss.center.eq(0).all() and loss.training
    run = climb(net(), loss=loss.eval(), optimizer="sgd lr=0.1", plan="fp32 micro=4", device="cpu")
    assert run.step((INPUTS, FLOATS)).loss > 0


def test_a_loss_that_cannot_be_tried_is_weighted_by_targets_with_an_event():
    def picky(outputs, targets):
        if len(outputs) == 6:
            raise ValueError("six rows")
        return torch.nn.functional.cross_entropy(outputs, targets)

    run = climb(net(), loss=picky, optimizer="sgd lr=0.1", plan="fp32 micro=4", device="cpu")
    assert run.step((INPUTS, CLASSES)).loss == pytest.approx(plain_loop(*SMOOTH)[0][0], rel=1e-5)
    assert run.events == [
        "loss: could not be tried in pieces (ValueError: six rows), so pieces of a batch are "
        "weighted by their targets other than -100; compare with `verify parity`"
    ]


@pytest.mark.parametrize("name", ["class weights", "sum", *REFUSED])
def test_a_batch_that_is_not_cut_may_have_any_loss(name):
    loss, targets = {**SAME, **REFUSED}[name]
    expected, plain = plain_loop(loss, targets)
    module = net()
    run = climb(module, loss=loss, optimizer="sgd lr=0.1", plan="fp32")
    assert [run.step((INPUTS, targets)).loss for _ in range(3)] == pytest.approx(expected, rel=1e-6)
    assert distance(module, plain) < 1e-6


ON_RANKS = "class weights, ignored", "sum", "own mask", "contrastive"


def train_all(plan):
    """Some losses under one plan: their values and parameters, or why they were refused."""
    found = {}
    for name in ON_RANKS:
        loss, targets = {**SAME, **REFUSED}[name]
        sample = INPUTS, targets
        try:
            run = climb(
                net(), loss=loss, optimizer="sgd lr=0.1", plan=plan, device="cpu", sample=sample
            )
            losses = [run.step((INPUTS, targets), rows="global").loss for _ in range(3)]
            found[name] = losses, whole_parameters(run.module)
        except ModelError as refused:
            found[name] = str(refused), {}
    return found


@pytest.mark.parametrize("plan", PLANS)
def test_ranks_add_up_to_the_whole_batch_or_refuse_together(plan):
    ranks = on_ranks(train_all, 2, plan)
    for name in ON_RANKS[:-1]:
        loss, targets = SAME[name]
        expected, plain = plain_loop(loss, targets)
        found = {}
        for rank in ranks:
            assert rank[name][0] == pytest.approx(expected, rel=1e-5), name
            found |= rank[name][1]
        for key, parameter in plain.named_parameters():
            assert torch.allclose(found[key], parameter, rtol=1e-5, atol=1e-6), (name, key)
    for name in ON_RANKS[-1:]:
        first, second = (rank[name][0] for rank in ranks)
        assert first == second and first.startswith("loss: is "), (name, first, second)


class WithLoss(nn.Module):
    """A module that returns its own loss, a sum."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels, reduction="sum")}


def train_own_loss(plan):
    _, targets = SAME["sum"]
    batch = {"x": INPUTS, "labels": targets}
    run = climb(
        WithLoss(), loss=None, optimizer="sgd lr=0.01", plan=plan, device="cpu", sample=batch
    )
    return [run.step(batch, rows="global").loss for _ in range(2)]


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero3"])
def test_a_modules_own_loss_is_tried_on_ranks_too(plan):
    _, targets = SAME["sum"]
    summed = nn.CrossEntropyLoss(reduction="sum")
    expected, _ = plain_loop(summed, targets, steps=2, lr=0.01)
    for found in on_ranks(train_own_loss, 2, plan):
        assert found == pytest.approx(expected, rel=1e-5)


class Settings(dict):
    """Settings that take no items once they are frozen, as those of diffusers."""

    def __init__(self) -> None:
        super().__init__(scale=1.0)
        self.scale = 1.0

    def __setitem__(self, name, value):
        raise TypeError("frozen")


class Halting(nn.Module):
    """Reads frozen settings, and raises at the end of a pass without gradients."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.net, self.settings, self.raises = net(), Settings(), raises

    def forward(self, x, labels):
        loss = nn.functional.cross_entropy(self.net(x) * self.settings.scale, labels)
        if self.raises and not torch.is_grad_enabled():
            raise ValueError("not without gradients")
        return {"loss": loss}


def train_halting(raises):
    batch = {"x": INPUTS, "labels": CLASSES}
    run = climb(
        Halting(raises), optimizer="sgd lr=0.1", plan="fp32 zero3 shard=2", device="cpu",
        sample=batch,
    )  # fmt: skip
    return [run.step(batch, rows="global").loss for _ in range(3)], run.events


def test_a_pass_that_raises_in_a_trial_of_shards_is_refused():
    with pytest.raises(ModelError, match="raised in a pass without gradients, so 'net"):
        on_ranks(train_halting, 2, True)


def test_a_trial_reads_settings_that_cannot_be_copied():
    expected, _ = plain_loop(nn.CrossEntropyLoss(), CLASSES)
    for losses, events in on_ranks(train_halting, 2, False):
        assert losses == pytest.approx(expected, rel=1e-5) and not events
