"""Numbers out of a file into a run's own tensors."""

import pytest
import torch

from stepladder.checkpoint.reader import copy_values
from stepladder.checkpoint.safetensors_file import DTYPE_CODES


@pytest.mark.parametrize("dtype", list(DTYPE_CODES))
def test_numbers_of_every_type_arrive_in_a_tensor_that_lies_across(dtype):
    source = torch.arange(6).reshape(2, 3).to(dtype)
    target = torch.zeros(3, 2, dtype=dtype).t()
    copy_values(source, target)
    assert torch.equal(target.double(), source.double())


def test_a_parameter_that_was_filled_is_known_to_have_changed():
    parameter = torch.nn.Parameter(torch.zeros(3))
    before = parameter._version
    copy_values(torch.ones(3), parameter)
    assert parameter.tolist() == [1, 1, 1] and parameter._version > before


def test_numbers_become_those_of_the_tensor_they_go_to():
    target = torch.zeros(2, dtype=torch.bfloat16)
    copy_values(torch.tensor([1.0, 1.001]), target)
    assert target.tolist() == [1.0, 1.0]
