"""Guessed cuts that would compute something else are found before they are used."""

import pytest
import torch

from stepladder.errors import ModelError
from stepladder.model import find_anatomy
from stepladder.plan import Layout
from stepladder.rungs.tensor.tensor_parallel import tensor
from stepladder.world import join_world
from tests.ranks import run

from . import cut_models as models
from .test_tensor_parallel import start


def test_heads_that_nobody_divided_are_found_and_named():
    with pytest.raises(ModelError, match=r"layers.0: a Block whose linears look like pairs, comp"):
        run(start, 2, "deceiving", "fp32 tensor=2", init=False)


def untried(sample, proved: bool):
    """The refusal of a block that could not be tried alone: returned, or raised."""
    model, world = models.placed(), join_world(Layout(tensor=2), "cpu")
    try:
        return tensor(model, find_anatomy(model), world, proved=proved, inputs=sample)
    except ModelError as refused:
        return f"raised {refused}"


def test_a_block_that_cannot_be_tried_is_refused_by_name_unless_its_model_will_be():
    (raised, _), (returned, _) = (run(untried, 2, None, proved, init=False) for proved in (0, 1))
    assert raised.startswith("raised layers.0: a Placed, cannot be tried on one tensor of shape")
    assert "Give climb sample=batch." in raised and raised == f"raised {returned}"


def test_a_block_of_more_arguments_is_tried_as_its_model_calls_it():
    assert run(untried, 2, torch.zeros(1, 16).long(), True, init=False) == [None] * 2


def test_a_sum_across_a_cut_is_found():
    with pytest.raises(ModelError, match=r"computes something else once cut"):
        run(start, 2, "normed_inside", "fp32 tensor=2", init=False)
