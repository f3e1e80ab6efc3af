from functools import partial

import pytest
import torch
from torch import nn

from stepladder.trace import find_retained_graphs, live_graphs

torch.set_num_threads(1)


@pytest.fixture
def find():
    """Finds what a test keeps, whatever earlier tests of this process left."""
    return partial(find_retained_graphs, ignore=live_graphs())


def loss():
    return torch.ones(4, requires_grad=True).sum()


def test_losses_kept_in_a_list_are_named_with_the_list(find):
    kept = [loss() for _ in range(12)]
    assert str(find()) == (
        "memory: 12 tensors with graphs alive after the step; the largest is a () float32 from "
        "SumBackward0, held by a list of length 12. Call .item() or .detach() before keeping it."
    )
    assert len(kept) == 12


def test_detached_losses_are_nobody_to_name(find):
    kept = [loss().detach() for _ in range(3)]
    assert find() is None and kept


def test_the_largest_is_named(find):
    kept = {"small": loss(), "hidden": torch.ones(5, 7, requires_grad=True) * 2}
    found = find()
    assert (found.count, found.shape, found.made_by) == (2, (5, 7), "MulBackward0")
    assert found.holder == "a dict of length 2 under 'hidden'" and len(kept) == 2


def test_an_attribute_is_named_with_its_class(find):
    class Model(nn.Module):
        def forward(self, x):
            self.last_hidden = x * 2
            return x

    model = Model()
    model(torch.ones(3, requires_grad=True))
    assert find().holder == "Model.last_hidden"


def test_a_variable_of_a_running_function_is_called_that(find):
    held = loss()
    found = find()
    assert found.holder == "a variable of a running function, or a graph that saved it"
    assert str(found).startswith("memory: 1 tensor with its graph alive") and held.requires_grad


def test_a_closure_is_named(find):
    def closed(value):
        return lambda: value

    keeper = closed(loss())
    assert find().holder == "a variable that a function closed over"
    assert keeper().requires_grad


def test_of_equals_the_one_in_a_container_is_named(find):
    held = loss()
    kept = [loss()]
    assert find().holder == "a list of length 1" and held.requires_grad and kept
