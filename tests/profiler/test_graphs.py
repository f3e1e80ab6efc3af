import gc

import pytest
import torch
from torch import nn

from stepladder.profiler.graphs import find_retained_graphs

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_is_kept_before_or_after():
    gc.collect()
    assert find_retained_graphs() is None
    yield
    gc.collect()


def loss():
    return torch.ones(4, requires_grad=True).sum()


def test_losses_kept_in_a_list_are_named_with_the_list():
    kept = [loss() for _ in range(12)]
    assert str(find_retained_graphs()) == (
        "memory: 12 tensors with graphs alive after the step; the largest is a () float32 from "
        "SumBackward0, held by a list of length 12. Call .item() or .detach() before keeping it."
    )
    assert len(kept) == 12


def test_detached_losses_are_nobody_to_name():
    kept = [loss().detach() for _ in range(3)]
    assert find_retained_graphs() is None and kept


def test_the_largest_is_named():
    kept = {"small": loss(), "hidden": torch.ones(5, 7, requires_grad=True) * 2}
    found = find_retained_graphs()
    assert (found.count, found.shape, found.made_by) == (2, (5, 7), "MulBackward0")
    assert found.holder == "a dict of length 2 under 'hidden'" and len(kept) == 2


def test_an_attribute_is_named_with_its_class():
    class Model(nn.Module):
        def forward(self, x):
            self.last_hidden = x * 2
            return x

    model = Model()
    model(torch.ones(3, requires_grad=True))
    assert find_retained_graphs().holder == "Model.last_hidden"


def test_a_variable_of_a_running_function_is_called_that():
    held = loss()
    found = find_retained_graphs()
    assert found.holder == "a variable of a running function"
    assert str(found).startswith("memory: 1 tensor with its graph alive") and held.requires_grad


def test_a_closure_is_named():
    def closed(value):
        return lambda: value

    keeper = closed(loss())
    assert find_retained_graphs().holder == "a variable that a function closed over"
    assert keeper().requires_grad


def test_of_equals_the_one_in_a_container_is_named():
    held = loss()
    kept = [loss()]
    assert find_retained_graphs().holder == "a list of length 1" and held.requires_grad and kept
