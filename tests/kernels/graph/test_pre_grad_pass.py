"""The bundled pre-grad pass runs all of ours, and its cache key follows each."""

import pytest
import torch
from torch import nn

from stepladder.kernels.graph import gelu_pass, max_pool_pass
from stepladder.kernels.graph.compile import pass_options
from stepladder.kernels.graph.pre_grad_pass import PreGradPass


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ["stepladder.linear_gelu.default", "stepladder.max_pool.default"]),
        ({"selective": True}, ["stepladder.max_pool.default"]),
    ],
)
def test_every_pass_finds_its_pattern(monkeypatch, options, wanted):
    for each in (gelu_pass, max_pool_pass):
        monkeypatch.setattr(each, "is_worth_it", lambda *_: True)
    net = nn.Sequential(
        nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(12, 8), nn.GELU("tanh"), nn.Linear(8, 2)
    )
    found = []

    def look(module, _):
        pass_options(**options)["pre_grad_custom_pass"](module.graph)
        module.graph.lint()
        module.recompile()
        found.extend(str(n.target) for n in module.graph.nodes if "stepladder" in str(n.target))
        return module.forward

    images = torch.randn(5, 3, 4, 4)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(net, backend=look)(images), net(images))
    assert sorted(found) == wanted


def test_its_cache_key_follows_each(monkeypatch):
    before = PreGradPass().uuid()
    assert before == PreGradPass().uuid() != PreGradPass(selective=True).uuid()
    for each in (gelu_pass.GeluPass, max_pool_pass.MaxPoolPass):
        with monkeypatch.context() as patch:
            patch.setattr(each, "uuid", lambda _: "other")
            assert PreGradPass().uuid() != before
