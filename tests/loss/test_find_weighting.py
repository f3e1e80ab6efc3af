"""Which of several weightings that fit is taken."""

import torch

from stepladder.data import Batch
from stepladder.loss import Observation, Weighting, all_fits, by_class, first_of_best
from stepladder.loss.weighting import BY_TARGETS

COARSE = torch.finfo(torch.bfloat16).eps


def observation(whole):
    """Pieces of two rows and of four, with losses of 1 and 2."""
    targets = torch.tensor([0, 0, 1, 1, 1, 1])
    batch = Batch.of((torch.zeros(6, 1), targets), position=0, size=6)
    return Observation(batch, (2, 4), whole, (1.0, 2.0))


def test_a_weighting_that_fits_much_better_comes_before_a_simpler_one():
    weighed = by_class({1: 1.5})
    seen = [observation(whole=1.75)]  # (2 · 1 + 6 · 2) / 8; by targets 1.67
    assert list(all_fits([BY_TARGETS, weighed], seen, COARSE)) == [BY_TARGETS, weighed]
    assert first_of_best([BY_TARGETS, weighed], seen) == weighed


def test_the_simplest_of_those_that_fit_alike_is_taken():
    seen = [observation(whole=5 / 3)]
    assert first_of_best([BY_TARGETS, Weighting("rows")], seen) == BY_TARGETS
