"""A batch that does not divide by the ranks is shared unevenly, and computes the same."""

import pytest

from stepladder.data import Batch
from stepladder.plan.batch import uneven_rank_rows
from stepladder.train import climb
from tests.ranks import run

from .toys import llama, ragged

SIZES = (11, 7, 12)


def learn(plan: str):
    taken = climb(
        llama(), loss="cross_entropy", optimizer="sgd lr=0.5", plan=f"{plan} micro=1", device="cpu"
    )
    ways, losses = taken.world.layout.data_ranks, []
    for size, (tokens, targets) in zip(SIZES, ragged(len(SIZES))):
        rows = uneven_rank_rows(size, taken.world.data_index, ways)
        mine = slice(rows.start, rows.stop)
        batch = Batch.of((tokens[mine], targets[mine]), position=taken.position, size=size)
        losses.append(taken.step(batch).loss)
    return losses, taken.evaluate([batch])


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero3"])
def test_uneven_shares_compute_what_one_rank_does(plan):
    expected = learn("fp32")
    for losses, loss in run(learn, 2, plan, init=False):
        assert losses == pytest.approx(expected[0], rel=1e-5)
        assert loss == pytest.approx(expected[1], rel=1e-5)


def feed(size: int, uneven: bool):
    taken = climb(llama(), loss="cross_entropy", plan="fp32 ddp micro=1", device="cpu")
    with taken.batches(list(range(22)), size=size, seed=3, uneven=uneven) as batches:
        return [next(batches).inputs.tolist() for _ in range(4)]


def test_ranks_share_every_sample_of_an_uneven_batch_once():
    alone = feed(11, False)
    both = run(feed, 2, 11, True, init=False)
    assert [sorted(one + other) for one, other in zip(*both)] == [sorted(b) for b in alone]
