"""A global batch that no number of ranks but one divides is learned from as one device does."""

import pytest

from stepladder.data import Batch
from stepladder.plan import uneven_share
from stepladder.train import climb

from ..ranks import run
from ..train.toys import llama, ragged

pytestmark = pytest.mark.xdist_group("ranks")


def uneven(plan: str, sizes: tuple[int, ...]):
    """Learn from batches that no number of ranks but one divides."""
    taken = climb(
        llama(), loss="cross_entropy", optimizer="sgd lr=0.5", plan=f"{plan} micro=1", device="cpu"
    )
    ways, losses = taken.world.layout.data_ways, []
    for size, (tokens, targets) in zip(sizes, ragged(len(sizes))):
        rows = uneven_share(size, taken.world.data_index, ways)
        mine = slice(rows.start, rows.stop)
        batch = Batch.of((tokens[mine], targets[mine]), position=taken.position, size=size)
        losses.append(taken.step(batch).loss)
    return losses, taken.evaluate([batch])


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero3"])
def test_a_batch_that_does_not_divide_is_shared_unevenly_and_computes_the_same(plan):
    expected = uneven("fp32", (11, 7, 12))
    for losses, loss in run(uneven, 2, plan, (11, 7, 12), init=False):
        assert losses == pytest.approx(expected[0], rel=1e-5)
        assert loss == pytest.approx(expected[1], rel=1e-5)
