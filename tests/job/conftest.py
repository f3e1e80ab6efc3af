"""What holds for tests of jobs: modules that are alike are described once."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import stepladder.job.summary.forecast_comparison as forecast_comparison

KNOWN: dict[str, Any] = {}


def alike(module: nn.Module, sample: Any) -> str:
    """The same for modules whose forecasts are: their structure, and the shapes of a sample."""
    parts = [(name, type(part), part.extra_repr()) for name, part in module.named_modules()]
    config = getattr(getattr(module, "config", None), "to_dict", dict)()
    tensors = [
        (name, tensor.shape, tensor.dtype, tensor.requires_grad)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    ]
    shapes = tree_map(
        lambda part: (part.shape, part.dtype) if isinstance(part, torch.Tensor) else part, sample
    )
    return repr((parts, config, tensors, module.training, shapes))


@pytest.fixture(scope="module", autouse=True)
def alike_modules_are_described_once():
    """To describe a module of Hugging Face takes three seconds of a run of half a second."""
    describe = forecast_comparison.facts_for

    def look_up(module: nn.Module, sample: Any) -> Any:
        key = alike(module, sample)
        if key not in KNOWN:
            KNOWN[key] = describe(module, sample)
        return KNOWN[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(forecast_comparison, "facts_for", look_up)
        yield
