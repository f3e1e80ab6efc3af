"""A parameter that is cut under one of its names is cut under all of them, or refused."""

import pytest

from stepladder.errors import ModelError
from tests.ranks import run

from .test_tensor_parallel import batches, learn, start


def step(name):
    """One step of a cut model."""
    return start(name, "fp32 tensor=2").step(batches(name, 1)[0]).loss


def test_a_second_name_that_nobody_reads_is_cut_with_the_first():
    parameters = run(learn, 2, "placed", "fp32 tensor=2", init=False)[0][2]
    assert list(parameters) == list(learn("placed", "fp32")[2])


def test_a_second_name_that_is_read_is_found_at_the_first_batch():
    with pytest.raises(ModelError, match=r"layout.tensor: ReadTwice computes something else"):
        run(step, 2, "read_twice", init=False)
