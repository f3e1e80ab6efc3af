"""Outputs of a part of each sequence: put together where they can be, or refused."""

import torch

from stepladder.errors import ModelError
from stepladder.train import as_batch, climb
from stepladder.train.evaluation.observer import Observer
from tests.ranks import run
from tests.train.toys import llama, ragged


def observed():
    taken = climb(llama(), loss="cross_entropy", plan="fp32 context=2", device="cpu")
    observer = Observer(taken.plan, taken.world, lambda outputs: outputs, [])
    chunk = as_batch(ragged(1)[0], 0).columns(slice(0, 8))
    rank = float(taken.world.place.rank)
    whole = observer.whole(torch.full((12, 8, 3), rank), chunk)
    number = observer.whole(torch.tensor(rank), chunk)
    try:
        observer.whole(torch.zeros(12, 5), chunk)
    except ModelError as refused:
        return whole.mean((0, 2)).tolist(), number.item(), str(refused)


def test_chunks_are_joined_numbers_averaged_and_others_refused():
    for joined, number, refused in run(observed, 2, init=False):
        assert joined == [0.0] * 8 + [1.0] * 8 and number == 0.5
        assert refused == (
            "layout.context: an output of shape (12, 5) has no entry for each of the 8 tokens "
            "that a rank computes. Use context=1."
        )
