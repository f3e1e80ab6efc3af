"""Hooks of torch are shown the tensors in outputs that it cannot look into."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from stepladder.rungs.output_tensors import ShownOutputs, is_opaque, tensors_in


@dataclass
class Made:
    logits: Tensor
    name: str = "made"


def outputs(x):
    return {
        "tensor": x,
        "dict": {"logits": (x, [x]), "count": 3},
        "dataclass": Made(x),
        "object": SimpleNamespace(inner=Made(x), none=None),
        "inside": {"made": [SimpleNamespace(logits=x)]},
    }


OPAQUE = {"tensor": False, "dict": False, "dataclass": True, "object": True, "inside": True}


@pytest.mark.parametrize("kind", OPAQUE)
def test_what_containers_do_not_show_is_opaque(kind):
    made = outputs(torch.ones(2))[kind]
    assert is_opaque(made) == OPAQUE[kind]
    assert all(tensor.equal(torch.ones(2)) for tensor in tensors_in(made))
    assert any(True for _ in tensors_in(made))


@pytest.mark.parametrize("kind", OPAQUE)
def test_a_hook_between_sees_tensors_and_the_caller_gets_the_output(kind):
    class Making(nn.Module):
        def forward(self, x):
            self.made = outputs(x)[kind]
            return self.made

    module, seen = Making(), []
    module.register_forward_hook(lambda part, given, output: seen.append(output))
    ShownOutputs(module)
    assert module(torch.ones(2)) is module.made
    if OPAQUE[kind]:
        assert [type(one) for one in seen[0]] == [torch.Tensor] * len(seen[0])
    else:
        assert seen[0] is module.made
