"""Guessed cuts that would compute something else are found before they are used."""

import pytest

from stepladder.errors import ModelError
from tests.ranks import run

from .test_tensor_parallel import start


def test_heads_that_nobody_divided_are_found_and_named():
    with pytest.raises(ModelError, match=r"layers.0: a Block whose linears look like pairs, comp"):
        run(start, 2, "deceiving", "fp32 tensor=2", init=False)


def test_a_block_that_cannot_be_tried_is_refused_by_name():
    with pytest.raises(ModelError, match=r"layers.0: a Masked, cannot be tried on one tensor"):
        run(start, 2, "masked", "fp32 tensor=2", init=False)


def test_a_sum_across_a_cut_is_found():
    with pytest.raises(ModelError, match=r"computes something else once cut"):
        run(start, 2, "normed_inside", "fp32 tensor=2", init=False)
