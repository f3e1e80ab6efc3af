"""The stream between blocks in slices: odd lengths are refused, and dropout falls as it should."""

import pytest
import torch

from stepladder.errors import DataError
from stepladder.train import climb
from tests.ranks import run
from tests.train.toys import ragged

from . import cut_models as models
from .test_tensor_parallel import start


def feed_odd_length():
    start("gpt", "fp32 tensor=2").step(tuple(t[:, :15] for t in ragged(1)[0]))


def test_a_length_that_does_not_divide_is_refused():
    with pytest.raises(DataError, match=r"sequence: 15 tokens do not divide by tensor=2, which sl"):
        run(feed_odd_length, 2, init=False)


def dropped():
    """Which numbers fall before the blocks and inside one, and the generator's state after."""
    taken = climb(
        models.gpt(dropout=0.5), loss="cross_entropy", plan="fp32 tensor=2 micro=12", device="cpu"
    )
    falls = []
    for part in (taken.module.dropout, taken.module.blocks[0].dropout):
        part.register_forward_hook(lambda _, args, made: falls.append(made == 0))
    taken.step(ragged(1)[0])
    return falls[0], falls[1], torch.get_rng_state()


def test_ranks_drop_alike_what_is_whole_and_each_its_own_of_slices():
    (before, inside, state), (other_before, other_inside, other_state) = run(dropped, 2, init=False)
    assert torch.equal(before, other_before)
    assert inside.shape[1] == before.shape[1] // 2
    assert not torch.equal(inside, other_inside)
    assert torch.equal(state, other_state)
