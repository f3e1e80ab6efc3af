"""Of a part on another stage: shapes and types are told, numbers are refused by the part's name."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stepladder.errors import ModelError
from stepladder.model import meta_copy
from stepladder.rungs.pipeline.forward_record import TensorShape
from stepladder.rungs.pipeline.remote_activation import RemoteActivation
from stepladder.rungs.pipeline.remote_part import RemotePart, RemoteTensor
from stepladder.rungs.pipeline.stage_passage import Passage, StagePorts

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


def stand_in(part, flowing, results=None):
    """What stands in for a part on a stage that received this tensor."""
    passage = Passage(StagePorts({}, {}))
    passage.begin([flowing])
    return RemotePart("part", part, passage, results or {})


def test_an_answer_has_the_shape_the_part_would_give_and_the_type_that_flows():
    flowing = torch.ones(2, 10, 4, dtype=torch.bfloat16)
    made = stand_in(nn.Embedding(8, 4), flowing)(torch.zeros(2, 9, dtype=torch.long))
    assert isinstance(made, RemoteActivation)
    assert made.shape == (2, 9, 4) and made.dtype == torch.bfloat16


class Several(nn.Module):
    """Returns what it was given beside what it makes, and a number that is no tensor."""

    def forward(self, tokens, length):
        return {"made": tokens * 2.0, "given": tokens, "length": length + 1}


def test_an_answer_has_the_parts_containers_and_hands_on_what_it_was_given():
    part, tokens = stand_in(Several(), torch.ones(2)), torch.zeros(2, 9)
    made = part(tokens, length=3)
    assert made["given"] is tokens and made["length"] == 4
    assert isinstance(made["made"], RemoteActivation) and made["made"].shape == (2, 9)
    assert part(torch.zeros(5), length=3)["made"].shape == (5,)


class Looking(nn.Module):
    def forward(self, tokens):
        return (tokens if tokens.sum() else -tokens), None


def test_where_it_looks_at_numbers_what_it_is_given_serves():
    traced = {("part", 0): (TensorShape((1, 9), torch.float32), None)}
    made, nothing = stand_in(Looking(), torch.ones(2, 3), traced)(torch.zeros(2, 9))
    assert isinstance(made, RemoteActivation) and made.shape == (2, 9) and nothing is None
