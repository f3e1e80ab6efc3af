"""Ranks with unequal numbers of rows, or none, compute what a plain loop on one process does."""

import pytest
import torch

from stepladder.errors import DataError, StepladderError
from stepladder.train import climb
from tests.ranks import run

from .toys import net, pairs

SPLITS = ((5, 1), (2, 6), (3, 0), (4, 4))  # rows of each rank, by step


def plain():
    module, losses = net(1), []
    by = torch.optim.SGD(module.parameters(), 0.5)
    for (x, y), split in zip(pairs(len(SPLITS)), SPLITS):
        by.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x[: sum(split)]), y[: sum(split)])
        loss.backward()
        by.step()
        losses.append(loss.item())
    return losses


def start(plan):
    return climb(net(1), loss="cross_entropy", optimizer="sgd lr=0.5", plan=plan, device="cpu")


def unequal(plan):
    taken, losses, positions = start(plan), [], []
    for (x, y), (first, second) in zip(pairs(len(SPLITS)), SPLITS):
        mine = slice(0, first) if taken.world.data_index == 0 else slice(first, first + second)
        losses.append(taken.step((x[mine], y[mine]), rows="rank").loss)
        positions.append(taken.position)
    return losses, positions


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero3 micro=2", "fp32 zero2 accumulate=2"])
def test_ranks_may_hand_over_unequal_numbers_of_rows(plan):
    expected = plain()
    for losses, positions in run(unequal, 2, plan, init=False):
        assert losses == pytest.approx(expected, rel=1e-5)
        assert positions == [6, 14, 17, 25]


def shared(plan, size, stop):
    taken = start(plan)
    x, y = (torch.cat(parts) for parts in zip(*pairs(3)))
    rows = list(zip(x, y))
    feed = taken.batches(rows, size=size, uneven=True, stop=stop, seed=4)
    losses = [taken.step(batch).loss for batch in feed]
    feed = taken.batches(rows, size=size, uneven=True, stop=taken.position + stop, shuffle=False)
    held_out = list(feed)
    return losses, taken.evaluate(held_out), taken.position


@pytest.mark.parametrize("plan", ["fp32 zero3 accumulate=2", "fp32 ddp", "fp32 zero3 micro=2"])
def test_uneven_batches_and_a_last_one_smaller_than_the_ranks_are_shared(plan):
    alone = shared("fp32", 5, 16)
    for found in run(shared, 3, plan, 5, 16, init=False):
        assert found[0] == pytest.approx(alone[0], rel=1e-5)
        assert found[1] == pytest.approx(alone[1], rel=1e-5) and found[2] == 16


def mistaken(what):
    taken = start("fp32 ddp")
    x, y = pairs(1)[0]
    own = taken.world.data_index
    given, rows = {
        "global": ((x[: 4 + own], y[: 4 + own]), "global"),
        "rank": ((x, y[: 8 - own]), "rank"),
        "none": ((x[:0], y[:0]), "rank"),
    }[what]
    try:
        taken.step(given, rows=rows)
    except StepladderError as refused:
        return type(refused) is DataError, str(refused)


def test_all_ranks_refuse_a_batch_that_one_of_them_cannot_use():
    both = run(mistaken, 2, "global", init=False)
    assert both == [both[0]] * 2 and "ranks were given 4, 5 rows" in both[0][1]
    well, ill = run(mistaken, 2, "rank", init=False)
    assert well == (True, "batch: data rank 1 cannot use its batch. Its log says why.")
    assert "different numbers of rows" in ill[1]
    both = run(mistaken, 2, "none", init=False)
    assert (
        both
        == [(True, "batch: has no rows on any rank. Give at least one, or leave the batch out.")]
        * 2
    )


def backed_off(readers):
    taken = climb(
        net(1), loss="cross_entropy", optimizer="sgd lr=0.5", plan="fp32 ddp", device="cpu",
        nonfinite="backoff",
    )  # fmt: skip
    good, bad = pairs(1)[0], (torch.full((8, 16), float("nan")), torch.zeros(8, dtype=torch.long))
    reads, rates = taken.world.place.rank in readers, []
    for batch in (good, bad, good, bad, bad, good):
        report = taken.step(batch, rows="global")
        if reads:
            report.read()
        rates.append(taken.optimizer.param_groups[0]["lr"] * taken.health.factor)
    try:
        for _ in range(9):
            report = taken.step(bad, rows="global")
            if reads:
                report.read()
        taken.step(good, rows="global")
    except StepladderError as ended:
        return [p.sum().item() for p in taken.module.parameters()], str(ended)


@pytest.mark.parametrize("readers", [(), (0,), (1,)])
def test_ranks_back_off_alike_whoever_reads_reports(readers):
    one, other = run(backed_off, 2, readers, init=False)
    assert one[0] == other[0]
    assert "8 halvings of the learning rate did not help" in one[1] and one[1][:7] == other[1][:7]
