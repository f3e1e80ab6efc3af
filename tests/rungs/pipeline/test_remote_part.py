"""Of a part on another stage: shapes and types are told, numbers are refused by the part's name."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stepladder.errors import ModelError
from stepladder.model import meta_copy
from stepladder.rungs.pipeline.remote_part import RemoteTensor, zeros_as_output

REFUSED = "'patch' of 'entry' is read on a stage that does not hold it"


@pytest.fixture
def patch():
    entry = meta_copy(nn.ModuleDict({"patch": nn.Linear(3, 5)}))
    return RemoteTensor("'patch' of 'entry'", entry["patch"])


def test_shapes_and_types_are_told(patch):
    assert patch.weight.dtype == torch.float32
    assert patch.weight.shape == (5, 3) and patch.weight.size(0) == 5
    assert patch.out_features == 5


@pytest.mark.parametrize(
    "use",
    [
        lambda patch: patch(torch.zeros(2, 3)),
        lambda patch: F.linear(torch.zeros(2, 3), patch.weight),
        lambda patch: torch.zeros(2, 5) @ patch.weight,
        lambda patch: torch.zeros(5) + patch.bias,
        lambda patch: patch.bias[0],
        lambda patch: patch.weight.T,
        lambda patch: patch.weight.device,
    ],
)
def test_whoever_computes_with_it_is_refused(patch, use):
    with pytest.raises(ModelError, match=REFUSED):
        use(patch)


def test_an_answer_has_the_shape_the_part_would_give_and_the_type_that_flows():
    flowing = torch.ones(2, 10, 4, dtype=torch.bfloat16)
    answer = zeros_as_output(meta_copy(nn.Embedding(8, 4)), lambda: flowing)
    made = answer((torch.zeros(2, 9, dtype=torch.long),), {})
    assert made.shape == (2, 9, 4) and made.dtype == torch.bfloat16 and not made.any()


class Looking(nn.Module):
    def forward(self, tokens):
        return tokens if tokens.sum() else -tokens


def test_where_it_looks_at_numbers_what_flows_serves():
    flowing = torch.ones(2, 3)
    made = zeros_as_output(Looking(), lambda: flowing)((torch.zeros(2, 9),), {})
    assert made.shape == (2, 3) and not made.any()
